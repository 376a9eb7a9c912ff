-- ARGV: the epoch in which everything was applied, the position up to which, the history and the floor of that position.
if redis.call('HEXISTS', META, 'id') == 1 and epoch_now() == ARGV[1]
   and (redis.call('HGET', META, 'hist') or '') == ARGV[3] then
    redis.call('HSET', META, 'epoch', ARGV[1], 'pos', ARGV[2])
    raise_floor(ARGV[4])
end
clean(500)
return reply('ok')
