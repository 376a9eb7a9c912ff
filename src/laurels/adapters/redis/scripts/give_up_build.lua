-- ARGV: the generation's id. Forgets the one under construction, if it is this one.
if redis.call('HGET', META, 'b:id') == ARGV[1] then
    give_up_building()
end
return reply('ok')
