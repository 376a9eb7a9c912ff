-- Gives whether something is left to be removed: it is called again until nothing is.
discard(redis.call('HGET', META, 'id'))
redis.call('UNLINK', live.z, live.h, live.d, live.n, LATE)
give_up_building()
redis.call('UNLINK', META)
return reply('ok', clean(1000))
