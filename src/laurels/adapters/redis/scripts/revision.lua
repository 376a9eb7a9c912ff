local problem = unreadable()
if problem then
    return reply(problem)
end
return reply('ok', revision_of(live))
