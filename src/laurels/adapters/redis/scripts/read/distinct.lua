-- ARGV: two scores, and a limit. Returns the distinct scores between them, both excluded, in the order of the sorted set.
local problem = unreadable('d')
if problem then
    return reply(problem)
end
return reply('ok', redis.call('ZRANGEBYSCORE', view.d, '(' .. ARGV[1], '(' .. ARGV[2], 'LIMIT', 0, ARGV[3]))
