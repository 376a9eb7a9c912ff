-- ARGV: an epoch, the ledger position up to which all rows were applied in it, its history and its floor. Marks the
-- ranking as complete, unless the epoch or the history has changed.
if redis.call('HEXISTS', META, 'id') == 1 and epoch_now() == ARGV[1]
   and (redis.call('HGET', META, 'hist') or '') == ARGV[3] then
    redis.call('HSET', META, 'epoch', ARGV[1], 'pos', ARGV[2])
    raise_floor(ARGV[4])
end
clean(500)
return reply('ok')
