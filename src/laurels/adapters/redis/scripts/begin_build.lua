-- ARGV: the new generation's id, how long its builder is waited for, capacity ('' for none), reserve, the live
-- generation that it is to replace ('' for none, 'any'). Gives 'ok', or 'busy' while another builder's claim lasts, and
-- if another one was quicker.
local epoch = epoch_now()
if not epoch then
    return reply('replica')
end
local claim = redis.call('HMGET', META, 'b:id', 'until', 'b:epoch', 'want_dense')
if claim[1] and claim[1] ~= ARGV[1] and claim[3] == epoch and tonumber(claim[2]) > now_ms() then
    return reply('busy')
end
if ARGV[5] ~= 'any' and ARGV[5] ~= (redis.call('HGET', META, 'id') or '') then
    return reply('busy')
end
give_up_building()
clean(500)
redis.call('HSET', META, 'b:id', ARGV[1], 'until', now_ms() + tonumber(ARGV[2]), 'b:epoch', epoch, 'b:rev', 0,
           'b:out', 0, 'b:res', ARGV[4], 'b:dense', claim[4] or '0')
if ARGV[3] ~= '' then
    redis.call('HSET', META, 'b:cap', ARGV[3])
end
return reply('ok')
