-- ARGV: the generation's id, the ledger's position before the rows were read, channel, publish command. Makes the new
-- generation the live one.
local epoch = epoch_now()
if redis.call('HGET', META, 'id') == ARGV[1] then
    return reply('ok')
end
if open(building) ~= ARGV[1] or redis.call('HGET', META, 'b:epoch') ~= epoch then
    return reply('gone')
end
local kept = redis.call('HMGET', META, 'want_dense', 'floor')
local want_dense = kept[1]
redis.call('UNLINK', live.z, live.h, live.d, live.n)
discard(redis.call('HGET', META, 'id'))
for _, part in ipairs({'z', 'h', 'd', 'n'}) do
    if redis.call('EXISTS', building[part]) == 1 then
        redis.call('RENAME', building[part], live[part])
    end
end
local b = building
redis.call('DEL', META)
redis.call('HSET', META, 'id', b.id, 'rev', b.rev, 'dense', b.dense and '1' or '0', 'width', b.width,
           'epoch', epoch, 'pos', ARGV[2], 'hist', b.hist, 'floor', kept[2] or '0')
if want_dense then
    redis.call('HSET', META, 'want_dense', want_dense)
end
b.epoch = epoch
publish(ARGV[4], ARGV[3], b)
return reply('ok')
