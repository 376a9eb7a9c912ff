-- ARGV: the generation's id. Forgets the one under construction, if it is this one.
if redis.call('HGET', META, 'b:id') == ARGV[1] then
    redis.call('UNLINK', building.z, building.h, building.d, building.n)
    redis.call('HDEL', META, 'b:id', 'b:rev', 'b:cap', 'b:res', 'b:out', 'b:bs', 'b:bm', 'b:dense', 'b:epoch', 'until')
end
return reply('ok')
