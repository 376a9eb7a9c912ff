open(live)
local problem = why_not(live)
if problem then
    return reply(problem)
end
return reply('ok', revision_of(live))
