-- ARGV: whether to forget those outside, where to go on. Lets go of whom a trimmed ranking need not hold; gives how many,
-- and where to go on.
if not open(live) then
    return reply('cold')
end
if epoch_now() == nil then
    return reply('replica')
end
-- A refill under way may bring back whom it knows to be outside.
if not live.cap or live.late then
    return reply('ok', 0, '0')
end
local gone = math.max(0, redis.call('ZCARD', live.z) - live.cap - live.res)
if gone > 0 then
    cut(live, live.cap + live.res)
    local last = redis.call('ZRANGE', live.z, -1, -1, 'WITHSCORES')
    live.bs, live.bm = tonumber(last[2]), last[1]
    save(live)
end
if ARGV[1] ~= '1' then
    return reply('ok', gone, '0')
end
local page = redis.call('HSCAN', live.h, ARGV[2], 'COUNT', 1000)
for i = 1, #page[2], 2 do
    if string.sub(page[2][i + 1], 1, 1) == 'o' then
        redis.call('HDEL', live.h, page[2][i])
        gone = gone + 1
    end
end
return reply('ok', gone, page[1])
