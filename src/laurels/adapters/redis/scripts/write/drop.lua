-- Drops the rankings of a period. Returns true while keys are left: call it again.
discard(redis.call('HGET', META, 'id'))
redis.call('UNLINK', live.z, live.h, live.d, live.n)
give_up_building()
redis.call('UNLINK', META)
return reply('ok', clean(1000))
