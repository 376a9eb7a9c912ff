-- ARGV: users, a floor. Lets go of those who are not ranked; from now on the floor guards against older rows of theirs.
raise_floor(ARGV[2])
for _, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    if held_of(live, user) == '-' then
        redis.call('HDEL', live.h, user)
    end
end
if redis.call('HEXISTS', META, 'b:id') == 1 then
    -- Its builder may have read such rows already.
    give_up_building()
end
return reply('ok')
