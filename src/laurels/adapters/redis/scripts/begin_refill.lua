-- Gives how many of the best rows are wanted and the number of this refill; 'no' if none is needed. From now on those
-- who are put outside are remembered. A refill that has begun serves for the second one, too.
if not open(live) then
    return reply('cold')
end
if not runs_low(live) then
    return reply('no')
end
local fields = redis.call('HMGET', META, 'late', 'token')
local token = tonumber(fields[2] or '0')
if fields[1] ~= '1' then
    token = token + 1
    redis.call('DEL', LATE)
    redis.call('HSET', META, 'late', '1', 'token', token)
end
return reply('ok', live.cap + live.res, token)
