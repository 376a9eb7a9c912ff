-- ARGV: users, style. For each: rank, score, the member's time; false if not ranked.
open(live)
local problem = why_not(live)
if problem then
    return reply(problem)
end
if ARGV[2] == 'd' and not live.dense then
    return reply('sparse')
end
local found = {}
for i, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    local offset, score, prefix = locate(live, user)
    found[i] = offset and {rank_at(live, offset, score, ARGV[2]), score, prefix} or false
end
return reply('ok', found)
