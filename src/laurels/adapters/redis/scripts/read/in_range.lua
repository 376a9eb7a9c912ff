-- ARGV: two bounds for ZCOUNT, before and after a range of scores, how many rows to skip from the start of the range, a
-- limit, '1' to skip from its end instead, and a style. Returns how many users are ranked, how many are better than the
-- range, how many are in it, the offset and the rank of the first entry, and members with scores.
local style = ARGV[6]
local problem = unreadable(style)
if problem then
    return reply(problem)
end
local count = total(view, capacity)
local before = math.min(count, redis.call('ZCOUNT', view.z, '-inf', ARGV[1]))
local after = math.max(before, math.min(count, redis.call('ZCOUNT', view.z, '-inf', ARGV[2])))
local offset = (ARGV[5] == '1' and after or before) + tonumber(ARGV[3])
local start, stop = math.max(0, offset), math.min(count, offset + tonumber(ARGV[4]))
if start >= stop then
    return reply('ok', count, before, after - before, start, 0, {})
end
local page = redis.call('ZRANGE', view.z, start, stop - 1, 'WITHSCORES')
return reply('ok', count, before, after - before, start, rank_at(view, start, page[2], style, page[1]), page)
