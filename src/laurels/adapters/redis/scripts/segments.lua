-- ARGV: where to go on. Gives some of the segments that have somebody, and where to go on.
if not open(live) then
    return reply('cold')
end
local page = redis.call('SSCAN', segments_of(live.id), ARGV[1], 'COUNT', 1000)
return reply('ok', page[1], page[2])
