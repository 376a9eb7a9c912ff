-- Requests a rebuild that keeps the distinct scores: the live generation can't answer dense ranks.
redis.call('HSET', META, 'want_dense', '1')
return reply('ok')
