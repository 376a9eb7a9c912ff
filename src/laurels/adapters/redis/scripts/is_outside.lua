-- ARGV: user.
open(live)
local problem = why_not(live)
if problem then
    return reply(problem)
end
local tag = held_of(live, ARGV[1])
return reply('ok', tag == 'o' or (tag == '=' and not locate(live, ARGV[1])))
