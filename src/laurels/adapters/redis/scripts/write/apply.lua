-- ARGV: rows, their times, style, channel, publish command, capacity, the history that the rows come from, the floor
-- that was known when they were read, what is wanted: 0 nothing, 1 the ranks after, 2 those before and after, 3 the
-- scores and times before and after, from which the caller counts the ranks over several parts. Returns these before and
-- after each row; 'refused' if some rows must be read again, and 'stale' if the ranks are unknown.
local rows, style, capacity = unpack_rows(ARGV[1], ARGV[2]), ARGV[3], capacity_of(ARGV[6])
local history, floor = ARGV[7], tonumber(ARGV[8])
if open(building) then
    local claim = redis.call('HMGET', META, 'b:epoch', 'until', 'lease')
    if claim[1] ~= epoch_now() or not lasts(tonumber(claim[2] or ''), now_ms(), tonumber(claim[3] or '0')) then
        -- The builder's lease ended, or another Redis server took over.
        give_up_building()
        building.id = false
    end
end
if building.id and building.hist == history then
    if take(building, rows, floor) then
        -- The build would go live before the row was read again.
        give_up_building()
        building.id = false
    end
end
if building.id and building.hist == history then
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
-- The ranks of a stale ranking would be wrong, but its rows may be updated.
local ranked, wanted = problem == nil, tonumber(ARGV[9])
local before, after = {}, {}
if ranked and wanted == 2 then
    before = ranks_of(live, rows, style, capacity)
elseif ranked and wanted == 3 then
    before = entries_of(live, rows)
end
local refused = take(live, rows, floor)
save(live)
if ranked and wanted == 3 then
    after = entries_of(live, rows)
elseif ranked and wanted > 0 then
    after = ranks_of(live, rows, style, capacity)
end
if live.changed then
    publish(ARGV[5], ARGV[4], live)
end
return reply(refused and 'refused' or ranked and 'ok' or 'stale', before, after)
