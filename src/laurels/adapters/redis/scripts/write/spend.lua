-- ARGV: for each token bucket its name, the tokens that were taken, the tokens that it gains per second, and its size.
-- Returns what is left in each. A bucket that would be full again is deleted by its expiry.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {}
for i = 1, #ARGV, 4 do
    local key = PREFIX .. ARGV[i]
    local taken, per_ms, size = tonumber(ARGV[i + 1]), ARGV[i + 2] / 1000, tonumber(ARGV[i + 3])
    local held = redis.call('HMGET', key, 'left', 'at')
    local since = math.max(0, now - (tonumber(held[2]) or now))
    local left = math.min(size, (tonumber(held[1]) or size) + since * per_ms)
    -- Servers find out late that a bucket is empty; they don't have to pay for all of that.
    left = math.max(left - taken, -size)
    redis.call('HSET', key, 'left', left, 'at', now)
    redis.call('PEXPIRE', key, math.ceil((size - left) / per_ms) + 1000)
    answer[#answer + 1] = tostring(left)
end
return answer
