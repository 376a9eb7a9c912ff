-- ARGV: users. Lets go of those who are not ranked.
for _, user in ipairs(cmsgpack.unpack(ARGV[1])) do
    for _, g in ipairs({live, building}) do
        if held_of(g, user) == '-' then
            redis.call('HDEL', g.h, user)
        end
    end
end
return reply('ok')
