-- ARGV: a list of offsets. Returns how many users are ranked, and the row at each offset, or at the closest one.
local problem = unreadable('o')
if problem then
    return reply(problem)
end
local total = redis.call('ZCARD', view.z)
local rows = {}
if total > 0 then
    for i, offset in ipairs(cmsgpack.unpack(ARGV[1])) do
        offset = math.max(0, math.min(total - 1, offset))
        local row = redis.call('ZRANGE', view.z, offset, offset, 'WITHSCORES')
        rows[2 * i - 1], rows[2 * i] = row[1], row[2]
    end
end
return reply('ok', total, rows)
