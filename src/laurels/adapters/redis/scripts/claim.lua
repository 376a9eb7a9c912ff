-- KEYS[1]: a claim. ARGV: for how many milliseconds. Gives 'ok' if it is the caller's, 'no' while somebody else's lasts.
local now, lease = now_ms(), tonumber(ARGV[1])
if lasts(tonumber(redis.call('GET', META) or ''), now, lease) then
    return reply('no')
end
redis.call('SET', META, now + lease, 'PX', lease)
return reply('ok')
