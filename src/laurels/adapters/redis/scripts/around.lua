-- ARGV: user, above, below, style. As top, with the offset of the first entry and how many scores are better than the
-- user's; 'nobody' if the user is not ranked.
local problem = unreadable(ARGV[4])
if problem then
    return reply(problem)
end
local offset, score = locate(view, ARGV[1])
if not offset then
    return reply('nobody')
end
local count = total(view)
local first = math.max(0, offset - tonumber(ARGV[2]))
local last = math.min(count - 1, offset + tonumber(ARGV[3]))
local page = redis.call('ZRANGE', view.z, first, last, 'WITHSCORES')
local better = redis.call('ZCOUNT', view.z, '-inf', '(' .. score)
return reply('ok', count, rank_at(view, first, page[2], ARGV[4]), page, first, better)
