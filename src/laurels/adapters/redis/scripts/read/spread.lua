-- ARGV: the first and the last score that the caller expects, the inner edges in the direction of the sorted set, the
-- percentiles and the unit that is all users, the order of the board. Returns how many users are ranked, how many come
-- before each edge, and the scores of the percentiles; 'changed' if the first or the last score has changed.
local problem = unreadable()
if problem then
    return reply(problem)
end
local count = total(view, capacity)
if count == 0 then
    return reply('changed')
end
local first = redis.call('ZRANGE', view.z, 0, 0, 'WITHSCORES')[2]
local last = redis.call('ZRANGE', view.z, count - 1, count - 1, 'WITHSCORES')[2]
if first ~= ARGV[1] or last ~= ARGV[2] then
    return reply('changed')
end
local before = {}
for i, edge in ipairs(cmsgpack.unpack(ARGV[3])) do
    before[i] = math.min(count, redis.call('ZCOUNT', view.z, '-inf', edge))
end
local scores = {}
for k, share in ipairs(cmsgpack.unpack(ARGV[4])) do
    -- Percentiles ascend, and the lowest score of a descending ranking is the last entry.
    local offset = math.max(0, math.ceil(share * count / ARGV[5]) - 1)
    if ARGV[6] == 'desc' then
        offset = count - 1 - offset
    end
    scores[k] = redis.call('ZRANGE', view.z, offset, offset, 'WITHSCORES')[2]
end
return reply('ok', count, before, scores)
