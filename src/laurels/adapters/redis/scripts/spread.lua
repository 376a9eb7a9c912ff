-- ARGV: the first and the last score that are expected, the inner edges in the sorted set's direction, the parts of the
-- total, in tenths, at which scores are wanted. Gives how many are ranked, how many come before each edge (at it, if
-- the edge's flag says so), and the scores; 'moved' if the ends are others by now.
local problem = unreadable()
if problem then
    return reply(problem)
end
local count = total(view)
if count == 0 then
    return reply('moved')
end
local first = redis.call('ZRANGE', view.z, 0, 0, 'WITHSCORES')[2]
local last = redis.call('ZRANGE', view.z, count - 1, count - 1, 'WITHSCORES')[2]
if first ~= ARGV[1] or last ~= ARGV[2] then
    return reply('moved')
end
local before = {}
for i, edge in ipairs(cmsgpack.unpack(ARGV[3])) do
    before[i] = math.min(count, redis.call('ZCOUNT', view.z, '-inf', edge))
end
local scores = {}
for k = 1, 9 do
    -- From the lowest score up: the worst in a descending ranking is the last.
    local offset = math.ceil(k * count / 10) - 1
    if ARGV[4] == 'desc' then
        offset = count - 1 - offset
    end
    scores[k] = redis.call('ZRANGE', view.z, offset, offset, 'WITHSCORES')[2]
end
return reply('ok', count, before, scores)
