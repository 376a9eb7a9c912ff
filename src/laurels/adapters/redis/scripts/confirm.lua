-- ARGV: the epoch in which everything was applied, the position up to which.
if redis.call('HEXISTS', META, 'id') == 1 and epoch_now() == ARGV[1] then
    redis.call('HSET', META, 'epoch', ARGV[1], 'pos', ARGV[2])
end
clean(500)
return reply('ok')
