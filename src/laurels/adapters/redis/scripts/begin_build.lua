-- ARGV: the new generation's id, how long its builder is waited for, capacity ('' for none), reserve, the live
-- generation that it is to replace ('' for none, 'any'), the history that its rows are of, the floor that is known. Gives
-- 'ok', or 'busy' while another builder's claim lasts, and if another one was quicker.
local epoch = epoch_now()
if not epoch then
    return reply('replica')
end
local claim = redis.call('HMGET', META, 'b:id', 'until', 'b:epoch', 'want_dense', 'b:hist', 'lease')
local claimed = claim[1] and claim[1] ~= ARGV[1] and claim[3] == epoch and claim[5] == ARGV[6]
if claimed and lasts(tonumber(claim[2] or ''), now_ms(), tonumber(claim[6] or '0')) then
    return reply('busy')
end
if ARGV[5] ~= 'any' and ARGV[5] ~= (redis.call('HGET', META, 'id') or '') then
    return reply('busy')
end
give_up_building()
clean(500)
raise_floor(ARGV[7])
redis.call('HSET', META, 'b:id', ARGV[1], 'until', now_ms() + tonumber(ARGV[2]), 'lease', ARGV[2], 'b:epoch', epoch,
           'b:hist', ARGV[6], 'b:rev', 0, 'b:out', 0, 'b:res', ARGV[4], 'b:dense', claim[4] or '0')
if ARGV[3] ~= '' then
    redis.call('HSET', META, 'b:cap', ARGV[3])
end
return reply('ok')
