-- ARGV: users. Returns for each user: the tag, the version and, if ranked, score, time and segments; false if unknown.
if not open(live) then
    return reply('cold')
end
local found = {}
for i, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    local tag, version, prefix, segments = held_of(live, user)
    if tag == '=' then
        found[i] = {tag, version, redis.call('ZSCORE', live.z, prefix .. user), prefix, segments}
    else
        found[i] = tag and {tag, version} or false
    end
end
return reply('ok', found)
