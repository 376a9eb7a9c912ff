-- KEYS[1]: a lease. ARGV: its length in milliseconds. Returns 'ok' if the caller got it, 'no' if another one has it.
local now, lease = now_ms(), tonumber(ARGV[1])
if lasts(tonumber(redis.call('GET', META) or ''), now, lease) then
    return reply('no')
end
redis.call('SET', META, now + lease, 'PX', lease)
return reply('ok')
