-- ARGV: the number of the refill, how many rows were wanted, the ledger's best rows, their times, the history that they are
-- of, the floor that was known when they were read. See sorted_ranking.py.
if not open(live) then
    return reply('cold')
end
local fields = redis.call('HMGET', META, 'late', 'token')
if fields[1] ~= '1' or fields[2] ~= ARGV[1] then
    return reply('gone')
end
if live.hist ~= ARGV[5] or tonumber(ARGV[6]) < live.floor then
    -- They may be outdated: whoever needs them reads them again.
    end_refill()
    return reply('gone')
end
local best = unpack_rows(ARGV[3], ARGV[4])
local late = redis.call('HGETALL', LATE)
redis.call('DEL', LATE)
redis.call('HSET', META, 'late', '0')
live.late = false
local complete = #best < tonumber(ARGV[2])
live.bs, live.bm = nil, nil
if not complete then
    local last = best[#best]
    live.bs, live.bm = last[3], last[4] .. last[1]
end
for _, row in ipairs(best) do
    local tag, version, prefix = held_of(live, row[1])
    if row[2] > version or (row[2] == version and tag == 'o') then
        put(live, row[1], row[2], row[3], row[4], '', tag, prefix, '')
    end
end
for i = 1, #late, 2 do
    local user, entry = late[i], cmsgpack.unpack(late[i + 1])
    local tag, version = held_of(live, user)
    if tag == 'o' then
        put(live, user, version, entry[1], entry[2], '', tag, nil, '')
    end
end
if live.bs then
    -- The ledger may be ahead: others may have passed users that are held here with an older row.
    cut(live, count_up_to(live, live.bs, live.bm))
elseif live.out > 0 then
    -- The ledger has no score of them any more; the rows that say so are on their way.
    local cursor = '0'
    repeat
        local page = redis.call('HSCAN', live.h, cursor, 'COUNT', 1000)
        cursor = page[1]
        for i = 1, #page[2], 2 do
            if string.sub(page[2][i + 1], 1, 1) == 'o' then
                redis.call('HSET', live.h, page[2][i], '-' .. string.sub(page[2][i + 1], 2))
            end
        end
    until cursor == '0'
    live.out = 0
end
-- Those who came late are more than were asked for.
trim(live)
save(live)
return reply('ok')
