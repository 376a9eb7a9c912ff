-- What all scripts share; it stands before each of them.
--
-- The rankings of a period have structures that always agree, as in sorted_ranking.py: a sorted set of the world, whose
-- members are the time as 8 bytes that sort and then the user id; the same for each segment; and a hash that maps every
-- user to what is held. Scores are kept with the sign that makes the better one the smaller one: then equal scores are in
-- the order of their members, whatever the order of the board. What is held of a user is one of
--   =PPPPPPPPvvv            ranked: the member's first 8 bytes, then the version
--   =PPPPPPPPvvv|SEG SEG    the same, and ranked in these segments, too
--   ovvv                    has a score and is outside the capacity
--   -vvv                    removed, or hidden
--
-- A generation is all of that. The live one is read; beside it one may be under construction, whose names begin with
-- "b:". What belongs to segments is named by the generation instead, and the set of segments with it, for a flip must not
-- take longer the more of them there are; those of generations that are gone are cleaned up bit by bit, from the list
-- `junk`. The names follow from KEYS[1] and lie in its slot. The fields that are of no generation are in the hash KEYS[1]:
--   id, rev        of the live generation; rev grows with each change
--   cap, res       the capacity and the reserve beyond it
--   out            how many users are outside; bs and bm: score and member of the boundary
--   dense          1: the distinct scores are kept, too
--   epoch, pos     the server that was master when the ranking was known to be complete, up to that position
--   hist           the history of the ledger that its rows are of
--   floor          a version: erased users up to it may have been forgotten; of no generation
--   token, late    the refill under way: its number, and 1 while it lasts
--   until, b:epoch when the builder's claim ends, and the master under which it began
-- A read is given the names of the live generation only.
local META = KEYS[1]
local LATE = KEYS[6]
-- Without "meta".
local PREFIX = string.sub(META, 1, -5)
local JUNK = PREFIX .. 'junk'
local live = {name = '', z = KEYS[2], h = KEYS[3], d = KEYS[4], n = KEYS[5]}
local building = {name = 'b:', z = KEYS[7], h = KEYS[8], d = KEYS[9], n = KEYS[10]}

local function epoch_now()
    local info = redis.call('INFO', 'replication')
    if not string.find(info, 'role:master', 1, true) then
        return nil
    end
    return string.match(info, 'master_replid:(%w+)')
end

-- Whether a lease lasts: no longer than it was given for, also if the clock of the server was set back since.
local function lasts(ends, now, lease)
    return ends ~= nil and ends > now and ends - now <= lease
end

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Rows as {user, version, score, time, segments}; a removed one has no score. The times stand apart: they are bytes, not
-- text.
local function unpack_rows(rows, times)
    local unpacked = cmsgpack.unpack(rows)
    for i, row in ipairs(unpacked) do
        row[5] = row[4] or ''
        row[4] = string.sub(times, 8 * i - 7, 8 * i)
    end
    return unpacked
end

local function segments_of(id)
    return PREFIX .. 'segs:' .. id
end

-- What there is of a segment in a generation. It is read as the world's is.
local function part_of(g, segment)
    local parts = g.parts
    if not parts[segment] then
        local name = PREFIX .. 's:' .. g.id .. ':'
        parts[segment] = {segment = segment, z = name .. 'z:' .. segment, d = name .. 'd:' .. segment,
                          n = name .. 'n:' .. segment, h = g.h, cap = g.cap, dense = g.dense}
    end
    return parts[segment]
end

-- Removes a bit of what is left of old generations; gives whether there is more.
local function clean(limit)
    local id = redis.call('LINDEX', JUNK, 0)
    while id and limit > 0 do
        local gone = redis.call('SPOP', segments_of(id), limit)
        for _, segment in ipairs(gone) do
            local part = part_of({id = id, parts = {}}, segment)
            redis.call('UNLINK', part.z, part.d, part.n)
        end
        limit = limit - #gone
        if limit > 0 then
            redis.call('LPOP', JUNK)
            id = redis.call('LINDEX', JUNK, 0)
        end
    end
    return id and true or false
end

local function discard(id)
    if id and redis.call('EXISTS', segments_of(id)) == 1 then
        redis.call('RPUSH', JUNK, id)
    end
end

-- Reads what is known of a generation; false if there is none.
local function open(g)
    local p = g.name
    local fields = redis.call('HMGET', META, p .. 'id', p .. 'rev', p .. 'cap', p .. 'res', p .. 'out', p .. 'bs',
                              p .. 'bm', p .. 'dense', 'late', 'epoch', p .. 'hist', 'floor')
    g.id, g.rev = fields[1], tonumber(fields[2] or '0')
    g.cap, g.res = tonumber(fields[3] or ''), tonumber(fields[4] or '0')
    g.out, g.bs, g.bm = tonumber(fields[5] or '0'), tonumber(fields[6] or ''), fields[7]
    g.dense = fields[8] == '1'
    g.late = p == '' and fields[9] == '1'
    g.epoch = fields[10] or ''
    g.hist = fields[11] or ''
    g.floor = tonumber(fields[12] or '0')
    g.changed = false
    g.parts = {}
    return g.id
end

local function save(g)
    local p = g.name
    if g.changed then
        g.rev = g.rev + 1
    end
    redis.call('HSET', META, p .. 'rev', g.rev, p .. 'out', g.out)
    if g.bs then
        redis.call('HSET', META, p .. 'bs', g.bs, p .. 'bm', g.bm)
    else
        redis.call('HDEL', META, p .. 'bs', p .. 'bm')
    end
end

-- What a page may be kept under. A state that comes back from a replica or a snapshot has an epoch of its own.
local function revision_of(g)
    return g.id .. ':' .. g.epoch .. ':' .. g.rev
end

-- Who may not publish still ranks.
local function publish(command, channel, g)
    redis.pcall(command, channel, revision_of(g))
end

local function give_up_building()
    local b = building
    redis.call('UNLINK', b.z, b.h, b.d, b.n)
    discard(redis.call('HGET', META, 'b:id'))
    redis.call('HDEL', META, 'b:id', 'b:rev', 'b:cap', 'b:res', 'b:out', 'b:bs', 'b:bm', 'b:dense', 'b:hist', 'b:epoch',
               'until', 'lease')
end

local function end_refill()
    redis.call('DEL', LATE)
    redis.call('HSET', META, 'late', '0', 'token', '')
    live.late = false
end

-- Whether the live generation may be read or told ranks of; else why not.
local function why_not(g)
    if not g.id then
        return 'cold'
    end
    local epoch = epoch_now()
    if not epoch then
        return 'replica'
    end
    if g.epoch ~= epoch then
        return 'behind'
    end
    if g.out > 0 and redis.call('ZCARD', g.z) < g.cap then
        return 'short'
    end
    return nil
end

local function total(g)
    local count = redis.call('ZCARD', g.z)
    return (g.cap and g.cap < count) and g.cap or count
end

local function held_of(g, user)
    local held = redis.call('HGET', g.h, user)
    if not held then
        return nil, 0, nil, ''
    end
    local tag = string.sub(held, 1, 1)
    if tag == '=' then
        local version, segments = string.match(held, '^(%d+)|?(.*)$', 10)
        return tag, tonumber(version), string.sub(held, 2, 9), segments
    end
    return tag, tonumber(string.sub(held, 2)), nil, ''
end

-- Comparing strings with < would go by the server's locale.
local function is_after(a, b)
    local shorter = math.min(#a, #b)
    for i = 1, shorter do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then
            return x > y
        end
    end
    return #a > #b
end

local function is_beyond(g, score, member)
    if not g.bs or score < g.bs then
        return false
    end
    return score > g.bs or is_after(member, g.bm)
end

local function count_score(g, text, step)
    if not g.dense then
        return
    end
    -- Versions of Redis write the same number in different ways.
    text = string.format('%.17g', tonumber(text))
    local left = redis.call('HINCRBY', g.n, text, step)
    if left == 0 then
        redis.call('HDEL', g.n, text)
        redis.call('ZREM', g.d, text)
    elseif left == step then
        redis.call('ZADD', g.d, text, text)
    end
end

-- Takes a user out of segments, and puts one into others.
local function put_segments(g, old_member, old_segments, member, score, segments)
    for segment in string.gmatch(old_segments, '%S+') do
        local part = part_of(g, segment)
        if g.dense then
            count_score(part, redis.call('ZSCORE', part.z, old_member), -1)
        end
        redis.call('ZREM', part.z, old_member)
        if redis.call('EXISTS', part.z) == 0 then
            redis.call('SREM', segments_of(g.id), segment)
        end
    end
    for segment in string.gmatch(segments, '%S+') do
        local part = part_of(g, segment)
        redis.call('ZADD', part.z, score, member)
        if g.dense then
            count_score(part, redis.call('ZSCORE', part.z, member), 1)
        end
        if redis.call('ZCARD', part.z) == 1 then
            redis.call('SADD', segments_of(g.id), segment)
        end
    end
    g.changed = true
end

-- Puts a user where the score belongs; `old`, `old_prefix` and `old_segments` are what is held. score nil: removed.
local function put(g, user, version, score, prefix, segments, old, old_prefix, old_segments)
    local tag = '-'
    if score then
        tag = is_beyond(g, score, prefix .. user) and 'o' or '='
        if tag == 'o' and g.late then
            redis.call('HSET', LATE, user, cmsgpack.pack({score, prefix}))
        end
    end
    if old == '=' then
        local member = old_prefix .. user
        if g.dense then
            count_score(g, redis.call('ZSCORE', g.z, member), -1)
        end
        if tag ~= '=' or old_prefix ~= prefix then
            redis.call('ZREM', g.z, member)
        end
        g.changed = true
    end
    segments = tag == '=' and segments or ''
    if segments ~= '' or old_segments ~= '' then
        put_segments(g, (old_prefix or '') .. user, old_segments, prefix .. user, score, segments)
    end
    if tag == '=' then
        local member = prefix .. user
        redis.call('ZADD', g.z, score, member)
        if g.dense then
            count_score(g, redis.call('ZSCORE', g.z, member), 1)
        end
        redis.call('HSET', g.h, user, '=' .. prefix .. string.format('%.0f', version)
                                      .. (segments ~= '' and '|' .. segments or ''))
        g.changed = true
    else
        redis.call('HSET', g.h, user, tag .. string.format('%.0f', version))
    end
    g.out = g.out + (tag == 'o' and 1 or 0) - (old == 'o' and 1 or 0)
    if g.out == 0 then
        g.bs, g.bm = nil, nil
    end
end

-- Erased users up to this version may have been forgotten: whoever reads rows knows it, or is to read them again.
local function raise_floor(floor)
    if tonumber(floor) > tonumber(redis.call('HGET', META, 'floor') or '0') then
        redis.call('HSET', META, 'floor', floor)
    end
end

-- Takes a row over if it is newer than what is held. Gives whether it was refused: its user is not known, and whoever
-- read it knew nothing above `floor`.
local function take(g, row, floor)
    local user, version, score, prefix, segments = row[1], row[2], row[3], row[4], row[5]
    local old, held_version, old_prefix, old_segments = held_of(g, user)
    if not old and version <= g.floor and floor < g.floor then
        return true
    end
    if version > held_version then
        put(g, user, version, score or nil, prefix, segments, old, old_prefix, old_segments)
    end
    return false
end

-- Puts everybody from an offset on outside.
local function cut(g, keep)
    local cut_off = redis.call('ZRANGE', g.z, keep, -1, 'WITHSCORES')
    for i = 1, #cut_off, 2 do
        local member, score = cut_off[i], cut_off[i + 1]
        local user, prefix = string.sub(member, 9), string.sub(member, 1, 8)
        local _, version = held_of(g, user)
        redis.call('HSET', g.h, user, 'o' .. string.format('%.0f', version))
        count_score(g, score, -1)
        if g.late then
            redis.call('HSET', LATE, user, cmsgpack.pack({tonumber(score), prefix}))
        end
        g.out = g.out + 1
        g.changed = true
    end
    if #cut_off > 0 then
        redis.call('ZREMRANGEBYRANK', g.z, keep, -1)
    end
end

-- How many are ranked up to an entry, itself included.
local function count_up_to(g, score, member)
    local text = string.format('%.17g', score)
    local count = redis.call('ZCOUNT', g.z, '-inf', '(' .. text)
    local tied = redis.call('ZCOUNT', g.z, text, text)
    for _, other in ipairs(redis.call('ZRANGE', g.z, count, count + tied - 1)) do
        if is_after(other, member) then
            break
        end
        count = count + 1
    end
    return count
end

-- Rows were left out, for they are worse than this one: puts outside who is beyond it. Some of those may be held with a
-- row that is not the newest.
local function leave_out(g, number, row)
    local member = row[4] .. row[1]
    -- They are held nowhere, so they never leave this count; a refill that finds nobody else sets it right.
    g.out = g.out + number
    if not is_beyond(g, row[3], member) then
        g.bs, g.bm = row[3], member
    end
    cut(g, count_up_to(g, g.bs, g.bm))
end

local function trim(g)
    if not g.cap or redis.call('ZCARD', g.z) <= g.cap + 2 * g.res then
        return
    end
    cut(g, g.cap + g.res)
    local last = redis.call('ZRANGE', g.z, -1, -1, 'WITHSCORES')
    g.bs, g.bm = tonumber(last[2]), last[1]
end

local function runs_low(g)
    return g.out > 0 and redis.call('ZCARD', g.z) < g.cap + math.floor(g.res / 2)
end

-- The rank of the entry at an offset, in a style: o, c or d. Starts at 1.
local function rank_at(g, offset, score, style)
    if style == 'o' then
        return offset + 1
    elseif style == 'c' then
        return redis.call('ZCOUNT', g.z, '-inf', '(' .. score) + 1
    end
    return redis.call('ZCOUNT', g.d, '-inf', '(' .. score) + 1
end

local function is_in(segments, segment)
    return string.find(' ' .. segments .. ' ', ' ' .. segment .. ' ', 1, true) ~= nil
end

-- Offset, score and time of a user who is ranked; nothing for others.
local function locate(g, user)
    local tag, _, prefix, segments = held_of(g, user)
    if tag ~= '=' or (g.segment and not is_in(segments, g.segment)) then
        return nil
    end
    local member = prefix .. user
    local offset = redis.call('ZRANK', g.z, member)
    if g.cap and offset >= g.cap then
        return nil
    end
    return offset, redis.call('ZSCORE', g.z, member), prefix
end

local function rank_of(g, user, style)
    local offset, score = locate(g, user)
    return offset and rank_at(g, offset, score, style) or false
end

-- What a read is of: the world or a segment, and perhaps with a guest, who is there for as long as the read lasts. The
-- last arguments say so: the segment, and the guest, or nothing.
local view
local guest

local function admit(user, score, prefix)
    local member = prefix .. user
    if held_of(live, user) == '=' or is_beyond(live, score, member) then
        return
    end
    guest = {user = user, member = member, held = redis.call('HGET', live.h, user)}
    redis.call('ZADD', view.z, score, member)
    count_score(view, redis.call('ZSCORE', view.z, member), 1)
    redis.call('HSET', live.h, user, '=' .. prefix .. '0' .. (view.segment and '|' .. view.segment or ''))
end

local function dismiss()
    count_score(view, redis.call('ZSCORE', view.z, guest.member), -1)
    redis.call('ZREM', view.z, guest.member)
    if guest.held then
        redis.call('HSET', live.h, guest.user, guest.held)
    else
        redis.call('HDEL', live.h, guest.user)
    end
end

-- Opens the live generation for a read; gives why it can't be read in a style, if so.
local function unreadable(style)
    open(live)
    local problem = why_not(live)
    if problem then
        return problem
    end
    if style == 'd' and not live.dense then
        return 'sparse'
    end
    local segment = ARGV[#ARGV - 1]
    view = segment == 'global' and live or part_of(live, segment)
    local asked = ARGV[#ARGV]
    if asked ~= '' then
        -- The time first, for it is bytes; then the score and, after a space, the user.
        local score, user = string.match(asked, '^(%S+) (.*)$', 9)
        admit(user, tonumber(score), string.sub(asked, 1, 8))
    end
    return nil
end

local function reply(...)
    if guest then
        dismiss()
    end
    return {...}
end
