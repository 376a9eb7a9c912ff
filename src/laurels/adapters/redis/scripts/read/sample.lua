-- ARGV: score and member of a low key, score and member of a high key, and a number of samples. Returns how many users
-- are ranked, how many come before the low and before the high key, and evenly spaced rows between them: row j of n is at
-- low + floor(j * (high - low) / n), where n is the number of samples or of rows, if that is less.
local problem = unreadable()
if problem then
    return reply(problem)
end
local z = view.z
local low, high = offset_of(z, ARGV[1], ARGV[2]), offset_of(z, ARGV[3], ARGV[4])
local wanted = math.min(tonumber(ARGV[5]), high - low)
local rows = {}
for j = 0, wanted - 1 do
    local offset = low + math.floor(j * (high - low) / wanted)
    local row = redis.call('ZRANGE', z, offset, offset, 'WITHSCORES')
    rows[2 * j + 1], rows[2 * j + 2] = row[1], row[2]
end
return reply('ok', redis.call('ZCARD', z), low, high, rows)
