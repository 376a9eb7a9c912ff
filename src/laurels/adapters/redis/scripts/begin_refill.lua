-- ARGV: a number for a new refill. Gives how many of the best rows are wanted and the number of the refill under way;
-- 'no' if none is needed. From now on those who are put outside are remembered. A refill that has begun serves for the
-- second one, too.
if not open(live) then
    return reply('cold')
end
if not runs_low(live) then
    if live.late then
        end_refill()
    end
    return reply('no')
end
if not live.late then
    redis.call('DEL', LATE)
    redis.call('HSET', META, 'late', '1', 'token', ARGV[1])
end
return reply('ok', live.cap + live.res, redis.call('HGET', META, 'token'))
