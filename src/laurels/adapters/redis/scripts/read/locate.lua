-- ARGV: users. Returns the score and the time of each user in the segment; false for those who are not ranked.
local problem = unreadable()
if problem then
    return reply(problem)
end
local found = {}
for i, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    local tag, _, prefix, segments = held_of(view, user)
    local is_ranked = tag == '=' and (not view.segment or is_in(segments, view.segment))
    found[i] = is_ranked and {redis.call('ZSCORE', view.z, prefix .. user), prefix} or false
end
return reply('ok', found)
