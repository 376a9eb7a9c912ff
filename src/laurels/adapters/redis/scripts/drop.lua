redis.call('UNLINK', live.z, live.h, live.d, live.n, LATE)
redis.call('HDEL', META, 'id', 'rev', 'cap', 'res', 'out', 'bs', 'bm', 'dense', 'epoch', 'pos', 'late')
return reply('ok')
