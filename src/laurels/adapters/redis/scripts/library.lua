-- What all scripts share; it stands before each of them.
--
-- A ranking has two structures that always agree, as in sorted_ranking.py: a sorted set, whose members are the time as 8
-- bytes that sort and then the user id, and a hash that maps every user to what is held. Scores are kept with the sign
-- that makes the better one the smaller one: then equal scores are in the order of their members, whatever the order of
-- the board. What is held of a user is one of
--   =PPPPPPPPvvv   ranked: the member's first 8 bytes, then the version
--   ovvv           has a score and is outside the capacity
--   -vvv           removed
--
-- A generation is a whole ranking. The live one is read; beside it one may be under construction, whose names begin with
-- "b:". The fields of the ranking that are neither are in the hash KEYS[1]:
--   id, rev        of the live generation; rev grows with each change
--   cap, res       the capacity and the reserve beyond it
--   out            how many users are outside; bs and bm: score and member of the boundary
--   dense          1: the distinct scores are kept, too
--   epoch, pos     the server that was master when the ranking was known to be complete, up to that position
--   token, late    the refill under way: its number, and 1 while it lasts
--   until, b:epoch when the builder's claim ends, and the master under which it began
-- A read is given the names of the live generation only.
local META = KEYS[1]
local LATE = KEYS[6]
local live = {name = '', z = KEYS[2], h = KEYS[3], d = KEYS[4], n = KEYS[5]}
local building = {name = 'b:', z = KEYS[7], h = KEYS[8], d = KEYS[9], n = KEYS[10]}

local function epoch_now()
    local info = redis.call('INFO', 'replication')
    if not string.find(info, 'role:master', 1, true) then
        return nil
    end
    return string.match(info, 'master_replid:(%w+)')
end

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function reply(...)
    return {...}
end

-- Rows as {user, version, score, time}; a removed one has no score. The times stand apart: they are bytes, not text.
local function unpack_rows(rows, times)
    local unpacked = cmsgpack.unpack(rows)
    for i, row in ipairs(unpacked) do
        row[4] = string.sub(times, 8 * i - 7, 8 * i)
    end
    return unpacked
end

-- Reads what is known of a generation; false if there is none.
local function open(g)
    local p = g.name
    local fields = redis.call('HMGET', META, p .. 'id', p .. 'rev', p .. 'cap', p .. 'res', p .. 'out', p .. 'bs',
                              p .. 'bm', p .. 'dense', 'late', 'epoch')
    g.id, g.rev = fields[1], tonumber(fields[2] or '0')
    g.cap, g.res = tonumber(fields[3] or ''), tonumber(fields[4] or '0')
    g.out, g.bs, g.bm = tonumber(fields[5] or '0'), tonumber(fields[6] or ''), fields[7]
    g.dense = fields[8] == '1'
    g.late = p == '' and fields[9] == '1'
    g.epoch = fields[10] or ''
    g.changed = false
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
    redis.call('HDEL', META, 'b:id', 'b:rev', 'b:cap', 'b:res', 'b:out', 'b:bs', 'b:bm', 'b:dense', 'b:epoch', 'until')
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

-- Opens the live generation for a read; gives why it can't be read in a style, if so.
local function unreadable(style)
    open(live)
    local problem = why_not(live)
    if problem then
        return problem
    end
    return style == 'd' and not live.dense and 'sparse' or nil
end

local function total(g)
    local count = redis.call('ZCARD', g.z)
    return (g.cap and g.cap < count) and g.cap or count
end

local function held_of(g, user)
    local held = redis.call('HGET', g.h, user)
    if not held then
        return nil, 0, nil
    end
    local tag = string.sub(held, 1, 1)
    if tag == '=' then
        return tag, tonumber(string.sub(held, 10)), string.sub(held, 2, 9)
    end
    return tag, tonumber(string.sub(held, 2)), nil
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

-- Puts a user where the score belongs; `old` and `old_prefix` are what is held. score nil: removed.
local function put(g, user, version, score, prefix, old, old_prefix)
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
    if tag == '=' then
        local member = prefix .. user
        redis.call('ZADD', g.z, score, member)
        if g.dense then
            count_score(g, redis.call('ZSCORE', g.z, member), 1)
        end
        redis.call('HSET', g.h, user, '=' .. prefix .. string.format('%.0f', version))
        g.changed = true
    else
        redis.call('HSET', g.h, user, tag .. string.format('%.0f', version))
    end
    g.out = g.out + (tag == 'o' and 1 or 0) - (old == 'o' and 1 or 0)
    if g.out == 0 then
        g.bs, g.bm = nil, nil
    end
end

-- Takes a row over if it is newer than what is held.
local function take(g, row)
    local user, version, score, prefix = row[1], row[2], row[3], row[4]
    local old, held_version, old_prefix = held_of(g, user)
    if version > held_version then
        put(g, user, version, score or nil, prefix, old, old_prefix)
    end
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

-- Offset, score and time of a user who is ranked; nothing for others.
local function locate(g, user)
    local tag, _, prefix = held_of(g, user)
    if tag ~= '=' then
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
