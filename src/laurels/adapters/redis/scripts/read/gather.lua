-- Reads a part of a ranking at one moment, around keys that need not be in it. A key is a score and a member.
-- ARGV: a list of {score, user, above, count}, the head of each, a list of bounds for ZCOUNT, or '' if no ends
-- are wanted, a score and a limit, or '' if no distinct scores are wanted, and '1' to leave out the user of each key.
-- Returns how many users are ranked, the first and the last score ('' if they are not wanted), how many come before each
-- bound, for each key how many come before it, how many have a better score, the offset of the first row and the rows (up
-- to `above` before the key, and `count` from the key on), and the names and the scores of the distinct
-- scores before the given one, up to the limit.
local problem = unreadable(ARGV[4] ~= '' and 'd' or 'o')
if problem then
    return reply(problem)
end
local z = view.z
local total, first, last, before = redis.call('ZCARD', z), '', '', {}
if ARGV[3] ~= '' then
    if total > 0 then
        first = redis.call('ZRANGE', z, 0, 0, 'WITHSCORES')[2]
        last = redis.call('ZRANGE', z, -1, -1, 'WITHSCORES')[2]
    end
    for i, bound in ipairs(cmsgpack.unpack(ARGV[3])) do
        before[i] = redis.call('ZCOUNT', z, '-inf', bound)
    end
end
local pages = {}
for i, key in ipairs(cmsgpack.unpack(ARGV[1])) do
    local head = string.sub(ARGV[2], view.width * (i - 1) + 1, view.width * i)
    local offset, better = offset_of(z, key[1], head .. key[2])
    if view.width == 16 then
        better = better_than(view, key[1], head)
    end
    local start, stop = math.max(0, offset - key[3]), math.min(total, offset + key[4])
    local rows = {}
    if start < stop then
        rows = redis.call('ZRANGE', z, start, stop - 1, 'WITHSCORES')
    end
    if ARGV[6] == '1' then
        local own, score, own_head = locate(view, key[2], math.huge)
        if own and own < offset then
            offset = offset - 1
            local is_better = tonumber(score) < tonumber(key[1])
            if view.width == 16 and tonumber(score) == tonumber(key[1]) then
                is_better = comes_before(string.sub(own_head, 1, 8), string.sub(head, 1, 8))
            end
            if is_better then
                better = better - 1
            end
        end
    end
    pages[i] = {offset, better, start, rows}
end
local distinct = {}
if ARGV[4] ~= '' then
    -- With subscores, some of those with the same score are better.
    local last = (view.width == 16 and '' or '(') .. ARGV[4]
    distinct = redis.call('ZRANGEBYSCORE', view.d, '-inf', last, 'WITHSCORES', 'LIMIT', 0, ARGV[5])
end
return reply('ok', total, first, last, before, pages, distinct)
