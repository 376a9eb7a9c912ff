-- ARGV: user.
local problem = unreadable()
if problem then
    return reply(problem)
end
local tag, _, _, segments = held_of(view, ARGV[1])
local is_ranked = tag == '=' and (not view.segment or is_in(segments, view.segment))
return reply('ok', tag == 'o' or (is_ranked and not locate(view, ARGV[1])))
