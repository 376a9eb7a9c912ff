-- Returns how many users are ranked, and the first and the last score.
local problem = unreadable()
if problem then
    return reply(problem)
end
local count = total(view, capacity)
if count == 0 then
    return reply('ok', 0)
end
local first = redis.call('ZRANGE', view.z, 0, 0, 'WITHSCORES')
local last = redis.call('ZRANGE', view.z, count - 1, count - 1, 'WITHSCORES')
return reply('ok', count, first[2], last[2])
