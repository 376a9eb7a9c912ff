-- ARGV: a list of {user, above, below}, style. Returns for each of them how many users are ranked, the rank of the first
-- entry, members with scores, the offset of the first entry, and how many scores are better than the user's; false if the
-- user is not ranked.
local style = ARGV[2]
local problem = unreadable(style)
if problem then
    return reply(problem)
end
local count = total(view, capacity)
local found = {}
for i, asked in ipairs(cmsgpack.unpack(ARGV[1])) do
    local offset, score, prefix = locate(view, asked[1], capacity)
    if not offset then
        found[i] = false
    else
        local first = math.max(0, offset - asked[2])
        local last = math.min(count - 1, offset + asked[3])
        local better = better_than(view, score, prefix)
        local page
        if first == last then
            page = {prefix .. asked[1], score}
        else
            page = redis.call('ZRANGE', view.z, first, last, 'WITHSCORES')
        end
        local rank
        if first == offset and style == 'c' then
            rank = better + 1
        else
            rank = rank_at(view, first, page[2], style, page[1])
        end
        found[i] = {count, rank, page, first, better}
    end
end
return reply('ok', found)
