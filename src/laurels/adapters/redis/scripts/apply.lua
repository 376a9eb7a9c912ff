-- ARGV: rows, their times, style, channel, how to publish, how many were left out. Gives the ranks before and after each row.
local rows, style, left_out = unpack_rows(ARGV[1], ARGV[2]), ARGV[3], tonumber(ARGV[6])
if open(building) and (redis.call('HGET', META, 'b:epoch') ~= epoch_now()
                       or tonumber(redis.call('HGET', META, 'until')) < now_ms()) then
    -- Its builder is gone.
    give_up_building()
    building.id = false
end
if building.id then
    for _, row in ipairs(rows) do
        take(building, row)
    end
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
-- Ranks of a ranking that is behind would be wrong; the rows themselves are always right.
local ranked = problem == nil or problem == 'short'
local before, after = {}, {}
if ranked then
    for i, row in ipairs(rows) do
        before[i] = rank_of(live, row[1], style)
    end
end
for _, row in ipairs(rows) do
    take(live, row)
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
return reply(ranked and 'ok' or 'behind', before, after, runs_low(live))
