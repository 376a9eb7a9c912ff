-- ARGV: the generation's id, how long its builder is waited for, rows, their times. Adds rows to the one under construction.
if open(building) ~= ARGV[1] or redis.call('HGET', META, 'b:epoch') ~= epoch_now() then
    return reply('gone')
end
redis.call('HSET', META, 'until', now_ms() + tonumber(ARGV[2]), 'lease', ARGV[2])
for _, row in ipairs(unpack_rows(ARGV[3], ARGV[4])) do
    -- They were read since it was begun; whoever is forgotten meanwhile ends it.
    take(building, row, building.floor)
end
trim(building)
save(building)
return reply('ok')
