redis.call('UNLINK', live.z, live.h, live.d, live.n, LATE, META)
give_up_building()
return reply('ok')
