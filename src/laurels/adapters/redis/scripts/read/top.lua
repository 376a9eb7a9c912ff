-- ARGV: offset, limit, style. Returns how many users are ranked, the rank of the first entry, and members with scores.
local problem = unreadable(ARGV[3])
if problem then
    return reply(problem)
end
local offset, limit, style = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local count = total(view, capacity)
local stop = math.min(offset + limit, count)
if offset >= stop then
    return reply('ok', count, 0, {})
end
local page = redis.call('ZRANGE', view.z, offset, stop - 1, 'WITHSCORES')
return reply('ok', count, rank_at(view, offset, page[2], style, page[1]), page)
