-- ARGV: the new generation's id, the lease of its builder in milliseconds, the live generation that it replaces ('' for
-- none, or 'any'), the history that its rows come from, the known floor, the width of its heads. Returns 'ok', or 'busy' while another builder
-- has the lease, or if another builder was faster.
local epoch = epoch_now()
if not epoch then
    return reply('replica')
end
local claim = redis.call('HMGET', META, 'b:id', 'until', 'b:epoch', 'want_dense', 'b:hist', 'lease')
local claimed = claim[1] and claim[1] ~= ARGV[1] and claim[3] == epoch and claim[5] == ARGV[4]
if claimed and lasts(tonumber(claim[2] or ''), now_ms(), tonumber(claim[6] or '0')) then
    return reply('busy')
end
if ARGV[3] ~= 'any' and ARGV[3] ~= (redis.call('HGET', META, 'id') or '') then
    return reply('busy')
end
give_up_building()
clean(500)
raise_floor(ARGV[5])
redis.call('HSET', META, 'b:id', ARGV[1], 'until', now_ms() + tonumber(ARGV[2]), 'lease', ARGV[2], 'b:epoch', epoch,
           'b:hist', ARGV[4], 'b:rev', 0, 'b:dense', claim[4] or '0', 'b:width', ARGV[6])
return reply('ok')
