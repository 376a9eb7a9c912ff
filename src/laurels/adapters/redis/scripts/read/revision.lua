-- Returns the revision of the live generation.
local problem = unreadable()
if problem then
    return reply(problem)
end
return reply('ok', revision_of(live))
