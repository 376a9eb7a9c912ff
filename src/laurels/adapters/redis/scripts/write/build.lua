-- ARGV: the generation's id, the lease of its builder in milliseconds, rows, their times. Adds rows to the generation
-- under construction.
if open(building) ~= ARGV[1] or redis.call('HGET', META, 'b:epoch') ~= epoch_now() then
    return reply('gone')
end
redis.call('HSET', META, 'until', now_ms() + tonumber(ARGV[2]), 'lease', ARGV[2])
-- The rows were read after the build began, and forgetting a user ends a build.
take(building, unpack_rows(ARGV[3], ARGV[4]), building.floor)
save(building)
return reply('ok')
