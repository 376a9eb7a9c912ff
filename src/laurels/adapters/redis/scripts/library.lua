-- Functions that all scripts share. This file is prepended to each of them.
--
-- The keys are those of one part of a period's rankings. Most rankings have one part.
--
-- The rankings of a period are these structures, which always agree, as in sorted_ranking.py: a sorted set of all users
-- ("the world"), whose members are 8 bytes of time that sort, then the user id; the same for each segment; and a hash
-- that maps every user to a held value. Scores are stored with the sign that makes the better one the smaller one, so
-- that Redis orders equal scores by member for every board. The held value of a user is one of
--   =PPPPPPPPvvv            ranked: the first bytes of the member, then the version
--   =PPPPPPPPvvv|SEG SEG    the same, and also ranked in these segments
--   -vvv                    removed, or hidden
--
-- On boards with subscores, 8 bytes of subscore come before those of the time, so members of equal scores sort by it.
-- These first bytes of a member are its head. A generation has heads of one length, its width: 8 or 16.
--
-- A generation is one build of these structures. Reads use the live one. A second one may be under construction; its
-- names begin with "b:". The keys of segments carry the generation's id instead, so that replacing a generation takes
-- the same time for any number of segments. The keys of old generations are deleted in small steps, from the list
-- `junk`. All names derive from KEYS[1] and hash to its slot. The fields of the hash KEYS[1] that belong to no
-- generation are:
--   id, rev        of the live generation; rev grows with each change
--   dense          1: the distinct scores are kept, too
--   width          16: the rankings have subscores
--   epoch, pos     the master's id when the ranking was last complete, and the ledger position up to which it was
--   hist           the history of the ledger that the rows come from
--   floor          a version: erased users up to it may have been forgotten
--   until, b:epoch when the builder's lease ends, and the master under which the build began
-- Reads receive the names of the live generation only.
local META = KEYS[1]
-- KEYS[1] without its suffix "meta".
local PREFIX = string.sub(META, 1, -5)
local JUNK = PREFIX .. 'junk'
local live = {name = '', z = KEYS[2], h = KEYS[3], d = KEYS[4], n = KEYS[5]}
local building = {name = 'b:', z = KEYS[6], h = KEYS[7], d = KEYS[8], n = KEYS[9]}

local function epoch_now()
    local info = redis.call('INFO', 'replication')
    if not string.find(info, 'role:master', 1, true) then
        return nil
    end
    return string.match(info, 'master_replid:(%w+)')
end

-- Returns true while a lease is valid. It never lasts longer than its length, even if the server's clock is set back.
local function lasts(ends, now, lease)
    return ends ~= nil and ends > now and ends - now <= lease
end

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns rows as {user, version, score, head, segments}; a removed row has no score. Heads are a separate argument,
-- because they are bytes, not text.
local function unpack_rows(rows, heads)
    local unpacked = cmsgpack.unpack(rows)
    local width = #heads / math.max(1, #unpacked)
    for i, row in ipairs(unpacked) do
        row[5] = row[4] or ''
        row[4] = string.sub(heads, width * (i - 1) + 1, width * i)
    end
    return unpacked
end

local function segments_of(id)
    return PREFIX .. 'segs:' .. id
end

-- Returns the structures of a segment in a generation. Reads use them like the world's.
local function segment_of(g, segment)
    local known = g.segments
    if not known[segment] then
        local name = PREFIX .. 's:' .. g.id .. ':'
        known[segment] = {segment = segment, z = name .. 'z:' .. segment, d = name .. 'd:' .. segment,
                          n = name .. 'n:' .. segment, h = g.h, dense = g.dense, width = g.width}
    end
    return known[segment]
end

-- Deletes up to `limit` segments of old generations; returns true if there are more.
local function clean(limit)
    local id = redis.call('LINDEX', JUNK, 0)
    while id and limit > 0 do
        local gone = redis.call('SPOP', segments_of(id), limit)
        for _, segment in ipairs(gone) do
            local found = segment_of({id = id, segments = {}}, segment)
            redis.call('UNLINK', found.z, found.d, found.n)
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

-- Reads the fields of a generation; returns false if there is none.
local function open(g)
    local p = g.name
    local fields = redis.call('HMGET', META, p .. 'id', p .. 'rev', p .. 'dense', 'epoch', p .. 'hist', 'floor', p .. 'width')
    g.id, g.rev = fields[1], tonumber(fields[2] or '0')
    g.dense = fields[3] == '1'
    g.epoch = fields[4] or ''
    g.hist = fields[5] or ''
    g.floor = tonumber(fields[6] or '0')
    g.width = tonumber(fields[7] or '8')
    g.changed = false
    g.segments = {}
    return g.id
end

local function save(g)
    if g.changed then
        g.rev = g.rev + 1
        redis.call('HSET', META, g.name .. 'rev', g.rev)
    end
end

-- Returns the revision that pages are cached under. A state restored from a replica or a snapshot has another epoch.
local function revision_of(g)
    return g.id .. ':' .. g.epoch .. ':' .. g.rev
end

-- Ignores errors, so that ranks also work if the Redis account may not publish.
local function publish(command, channel, g)
    redis.pcall(command, channel, revision_of(g))
end

local function give_up_building()
    local b = building
    redis.call('UNLINK', b.z, b.h, b.d, b.n)
    discard(redis.call('HGET', META, 'b:id'))
    redis.call('HDEL', META, 'b:id', 'b:rev', 'b:dense', 'b:width', 'b:hist', 'b:epoch', 'until', 'lease')
end

-- Returns nil if the live generation can be read, else the reason why not.
local function why_not(g)
    if not g.id then
        return 'cold'
    end
    local epoch = epoch_now()
    if not epoch then
        return 'replica'
    end
    if g.epoch ~= epoch then
        return 'stale'
    end
    return nil
end

-- Returns the number of ranked users, up to a capacity (math.huge for no limit).
local function total(g, capacity)
    return math.min(redis.call('ZCARD', g.z), capacity)
end

local function parse_held(held, width)
    if not held then
        return nil, 0, nil, ''
    end
    local tag = string.sub(held, 1, 1)
    if tag == '=' then
        local version, segments = string.match(held, '^(%d+)|?(.*)$', 2 + width)
        return tag, tonumber(version), string.sub(held, 2, 1 + width), segments
    end
    return tag, tonumber(string.sub(held, 2)), nil, ''
end

local function held_of(g, user)
    return parse_held(redis.call('HGET', g.h, user), g.width or 8)
end

-- Counts a member in, or out of, those with the same score and subscore.
local function count_score(g, text, step, member)
    if not g.dense then
        return
    end
    -- Versions of Redis format the same number differently.
    text = string.format('%.17g', tonumber(text))
    local name = g.width == 16 and string.sub(member, 1, 8) .. text or text
    local left = redis.call('HINCRBY', g.n, name, step)
    if left == 0 then
        redis.call('HDEL', g.n, name)
        redis.call('ZREM', g.d, name)
    elseif left == step then
        redis.call('ZADD', g.d, text, name)
    end
end

-- Moves a user from some segments to others.
local function put_segments(g, old_member, old_segments, member, score, segments)
    for segment in string.gmatch(old_segments, '%S+') do
        local found = segment_of(g, segment)
        if g.dense then
            count_score(found, redis.call('ZSCORE', found.z, old_member), -1, old_member)
        end
        redis.call('ZREM', found.z, old_member)
        if redis.call('EXISTS', found.z) == 0 then
            redis.call('SREM', segments_of(g.id), segment)
        end
    end
    for segment in string.gmatch(segments, '%S+') do
        local found = segment_of(g, segment)
        redis.call('ZADD', found.z, score, member)
        if g.dense then
            count_score(found, redis.call('ZSCORE', found.z, member), 1, member)
        end
        if redis.call('ZCARD', found.z) == 1 then
            redis.call('SADD', segments_of(g.id), segment)
        end
    end
    g.changed = true
end

-- Puts a user at the position of the score; without a score, removes the user. `old`, `old_prefix` and `old_segments`
-- are the held values.
local function put(g, user, version, score, prefix, segments, old, old_prefix, old_segments)
    if old == '=' then
        local member = old_prefix .. user
        if g.dense then
            count_score(g, redis.call('ZSCORE', g.z, member), -1, member)
        end
        if not score or old_prefix ~= prefix then
            redis.call('ZREM', g.z, member)
        end
        g.changed = true
    end
    segments = score and segments or ''
    if segments ~= '' or old_segments ~= '' then
        put_segments(g, (old_prefix or '') .. user, old_segments, prefix .. user, score, segments)
    end
    if score then
        local member = prefix .. user
        redis.call('ZADD', g.z, score, member)
        if g.dense then
            count_score(g, redis.call('ZSCORE', g.z, member), 1, member)
        end
        redis.call('HSET', g.h, user, '=' .. prefix .. string.format('%.0f', version)
                                      .. (segments ~= '' and '|' .. segments or ''))
        g.changed = true
    else
        redis.call('HSET', g.h, user, '-' .. string.format('%.0f', version))
    end
end

-- Notes that erased users up to this version may have been forgotten. A caller that does not know the floor must read
-- its rows again.
local function raise_floor(floor)
    if tonumber(floor) > tonumber(redis.call('HGET', META, 'floor') or '0') then
        redis.call('HSET', META, 'floor', floor)
    end
end

-- Calls a command in parts, because Lua limits the number of arguments of a call.
local function call_in_parts(command, key, arguments, width)
    local step = width * 1000
    for start = 1, #arguments, step do
        redis.call(command, key, unpack(arguments, start, math.min(start + step - 1, #arguments)))
    end
end

-- Applies rows that are newer than the held versions. Returns true if a row was refused, because its user is unknown and
-- its reader did not know the current floor. Rows without segments share commands: one ZREM, ZADD and HSET for all.
local function take(g, rows, floor)
    local held, refused, seen = {}, false, {}
    for start = 1, #rows, 1000 do
        local users = {}
        for i = start, math.min(start + 999, #rows) do
            users[#users + 1] = rows[i][1]
        end
        for i, value in ipairs(redis.call('HMGET', g.h, unpack(users))) do
            held[start + i - 1] = value
        end
    end
    local gone, added, noted = {}, {}, {}
    for i, row in ipairs(rows) do
        local user, version, score, prefix, segments = row[1], row[2], row[3] or nil, row[4], row[5]
        local old, held_version, old_prefix, old_segments
        if seen[user] then
            -- The user has several rows in this call: the ones before must be visible.
            call_in_parts('ZREM', g.z, gone, 1)
            call_in_parts('ZADD', g.z, added, 2)
            call_in_parts('HSET', g.h, noted, 2)
            gone, added, noted = {}, {}, {}
            old, held_version, old_prefix, old_segments = held_of(g, user)
        else
            old, held_version, old_prefix, old_segments = parse_held(held[i], g.width)
        end
        if not old and version <= g.floor and floor < g.floor then
            refused = true
        elseif version > held_version then
            seen[user] = true
            if g.dense or segments ~= '' or old_segments ~= '' then
                put(g, user, version, score, prefix, segments, old, old_prefix, old_segments)
            else
                if old == '=' and not (score and old_prefix == prefix) then
                    gone[#gone + 1] = old_prefix .. user
                end
                noted[#noted + 1] = user
                if score then
                    added[#added + 1] = score
                    added[#added + 1] = prefix .. user
                    noted[#noted + 1] = '=' .. prefix .. string.format('%.0f', version)
                else
                    noted[#noted + 1] = '-' .. string.format('%.0f', version)
                end
                g.changed = g.changed or old == '=' or score ~= nil
            end
        end
    end
    call_in_parts('ZREM', g.z, gone, 1)
    call_in_parts('ZADD', g.z, added, 2)
    call_in_parts('HSET', g.h, noted, 2)
    return refused
end

-- Compares by bytes, as sorted sets do; Lua's own comparison follows the locale.
local function comes_before(one, other)
    for i = 1, math.min(#one, #other) do
        local a, b = string.byte(one, i), string.byte(other, i)
        if a ~= b then
            return a < b
        end
    end
    return #one < #other
end

-- Returns how many members come before a key, which need not be in the set, and how many have a better score.
-- O(log n · log ties).
local function offset_of(z, score, member)
    local better = redis.call('ZCOUNT', z, '-inf', '(' .. score)
    local low, high = better, redis.call('ZCOUNT', z, '-inf', score)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if comes_before(redis.call('ZRANGE', z, middle, middle)[1], member) then
            low = middle + 1
        else
            high = middle
        end
    end
    return low, better
end

-- Returns how many members have a strictly better score, and subscore, than a member.
local function better_than(g, score, member)
    if g.width == 8 then
        return redis.call('ZCOUNT', g.z, '-inf', '(' .. score)
    end
    return (offset_of(g.z, score, string.sub(member, 1, 8)))
end

-- Returns the rank of the entry at an offset, in a style: o, c or d. Starts at 1.
local function rank_at(g, offset, score, style, member)
    if style == 'o' then
        return offset + 1
    elseif style == 'c' then
        return better_than(g, score, member) + 1
    elseif g.width == 8 then
        return redis.call('ZCOUNT', g.d, '-inf', '(' .. score) + 1
    end
    return (offset_of(g.d, score, string.sub(member, 1, 8))) + 1
end

local function is_in(segments, segment)
    return string.find(' ' .. segments .. ' ', ' ' .. segment .. ' ', 1, true) ~= nil
end

-- Returns offset, score and head of a user; nil if the user is not ranked.
local function locate(g, user, capacity)
    local tag, _, prefix, segments = held_of(g, user)
    if tag ~= '=' or (g.segment and not is_in(segments, g.segment)) then
        return nil
    end
    local member = prefix .. user
    local offset = redis.call('ZRANK', g.z, member)
    if offset >= capacity then
        return nil
    end
    return offset, redis.call('ZSCORE', g.z, member), prefix
end

-- Returns the ranks of the users of some rows, false for those who are not ranked.
local function ranks_of(g, rows, style, capacity)
    local ranks = {}
    for i, row in ipairs(rows) do
        local user = row[1]
        if style == 'c' and capacity == math.huge then
            -- The offset is not needed.
            local tag, _, prefix = held_of(g, user)
            ranks[i] = tag == '=' and rank_at(g, 0, redis.call('ZSCORE', g.z, prefix .. user), style, prefix) or false
        else
            local offset, score, prefix = locate(g, user, capacity)
            ranks[i] = offset and rank_at(g, offset, score, style, prefix) or false
        end
    end
    return ranks
end

-- Returns the score and the head of the users of some rows, false for those who are not ranked.
local function entries_of(g, rows)
    local found = {}
    for i, row in ipairs(rows) do
        local tag, _, prefix = held_of(g, row[1])
        found[i] = tag == '=' and {redis.call('ZSCORE', g.z, prefix .. row[1]), prefix} or false
    end
    return found
end

-- Parses a capacity; '' means no limit.
local function capacity_of(text)
    return text == '' and math.huge or tonumber(text)
end

-- The view of a read: the world or a segment, up to a capacity, and optionally a viewer, who is ranked during this read
-- only. They come from the last three arguments: the capacity, the segment, and the viewer.
local view
local capacity
local viewer

local function admit(user, score, prefix)
    local member = prefix .. user
    if held_of(live, user) == '=' then
        return
    end
    viewer = {user = user, member = member, held = redis.call('HGET', live.h, user)}
    redis.call('ZADD', view.z, score, member)
    count_score(view, redis.call('ZSCORE', view.z, member), 1, member)
    redis.call('HSET', live.h, user, '=' .. prefix .. '0' .. (view.segment and '|' .. view.segment or ''))
end

local function dismiss()
    count_score(view, redis.call('ZSCORE', view.z, viewer.member), -1, viewer.member)
    redis.call('ZREM', view.z, viewer.member)
    if viewer.held then
        redis.call('HSET', live.h, viewer.user, viewer.held)
    else
        redis.call('HDEL', live.h, viewer.user)
    end
end

-- Opens the live generation for a read; returns nil, or the reason why it can't be read in a style.
local function unreadable(style)
    open(live)
    local problem = why_not(live)
    if problem then
        return problem
    end
    if style == 'd' and not live.dense then
        return 'sparse'
    end
    capacity = capacity_of(ARGV[#ARGV - 2])
    local segment = ARGV[#ARGV - 1]
    view = segment == 'global' and live or segment_of(live, segment)
    local asked = ARGV[#ARGV]
    if asked ~= '' then
        -- The head comes first, because it is bytes of fixed length; then the score and, after a space, the user.
        local score, user = string.match(asked, '^(%S+) (.*)$', 1 + live.width)
        admit(user, tonumber(score), string.sub(asked, 1, live.width))
    end
    return nil
end

local function reply(...)
    if viewer then
        dismiss()
    end
    return {...}
end
