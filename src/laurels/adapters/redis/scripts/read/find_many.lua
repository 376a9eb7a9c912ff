-- ARGV: users, style. Returns for each user: rank, score, the time of the member; false if not ranked.
local problem = unreadable(ARGV[2])
if problem then
    return reply(problem)
end
local found = {}
for i, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    local offset, score, prefix = locate(view, user, capacity)
    found[i] = offset and {rank_at(view, offset, score, ARGV[2], prefix), score, prefix} or false
end
return reply('ok', found)
