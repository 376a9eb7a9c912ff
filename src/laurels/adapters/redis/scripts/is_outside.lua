-- ARGV: user.
local problem = unreadable()
if problem then
    return reply(problem)
end
local tag = held_of(live, ARGV[1])
return reply('ok', tag == 'o' or (tag == '=' and not locate(live, ARGV[1])))
