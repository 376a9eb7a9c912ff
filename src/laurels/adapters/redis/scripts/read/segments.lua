-- ARGV: a cursor. Returns the next cursor, and some of the segments that have users.
if not open(live) then
    return reply('cold')
end
local page = redis.call('SSCAN', segments_of(live.id), ARGV[1], 'COUNT', 1000)
return reply('ok', page[1], page[2])
