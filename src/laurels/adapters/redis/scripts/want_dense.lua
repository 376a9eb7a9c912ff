-- Asks for the distinct scores to be kept: the next generation has them. The live one can't be read for dense ranks.
redis.call('HSET', META, 'want_dense', '1')
return reply('ok')
