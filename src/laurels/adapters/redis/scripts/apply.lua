-- ARGV: rows, their times, style, channel, how to publish, how many were left out, the history that the rows are of, the
-- floor that was known when they were read. Gives the ranks before and after each row; 'refused' if some have to be read
-- again, and 'behind' if the ranks are not known.
local rows, style, left_out = unpack_rows(ARGV[1], ARGV[2]), ARGV[3], tonumber(ARGV[6])
local history, floor = ARGV[7], tonumber(ARGV[8])
if open(building) then
    local claim = redis.call('HMGET', META, 'b:epoch', 'until', 'lease')
    if claim[1] ~= epoch_now() or not lasts(tonumber(claim[2] or ''), now_ms(), tonumber(claim[3] or '0')) then
        -- Its builder is gone.
        give_up_building()
        building.id = false
    end
end
if building.id and building.hist == history then
    local refused = false
    for _, row in ipairs(rows) do
        refused = take(building, row, floor) or refused
    end
    if refused then
        -- It would be in place before the row was read again.
        give_up_building()
        building.id = false
    end
end
if building.id and building.hist == history then
    if left_out > 0 then
        leave_out(building, left_out, rows[#rows])
    end
    trim(building)
    save(building)
end
if not open(live) then
    return reply('cold')
end
local problem = why_not(live)
if problem == 'replica' then
    return reply(problem)
end
if live.hist ~= history then
    return reply('refused')
end
-- Ranks of a ranking that is behind would be wrong; the rows themselves are always right.
local ranked = problem == nil or problem == 'short'
local before, after = {}, {}
if ranked then
    for i, row in ipairs(rows) do
        before[i] = rank_of(live, row[1], style)
    end
end
local refused = false
for _, row in ipairs(rows) do
    refused = take(live, row, floor) or refused
end
if left_out > 0 then
    leave_out(live, left_out, rows[#rows])
    if live.late then
        -- The refill under way does not know of them.
        end_refill()
    end
end
trim(live)
if live.late and not runs_low(live) then
    -- Others filled it up: the refill under way is not needed any more.
    end_refill()
end
save(live)
if ranked then
    for i, row in ipairs(rows) do
        after[i] = rank_of(live, row[1], style)
    end
end
if live.changed then
    publish(ARGV[5], ARGV[4], live)
end
return reply(refused and 'refused' or ranked and 'ok' or 'behind', before, after, runs_low(live))
