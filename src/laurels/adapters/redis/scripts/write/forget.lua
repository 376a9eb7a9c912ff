-- ARGV: users, a floor. Forgets the users who are not ranked; from now on the floor guards against their older rows.
raise_floor(ARGV[2])
for _, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    if held_of(live, user) == '-' then
        redis.call('HDEL', live.h, user)
    end
end
if redis.call('HEXISTS', META, 'b:id') == 1 then
    -- The builder may have read rows of these users already.
    give_up_building()
end
return reply('ok')
