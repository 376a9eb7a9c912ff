-- ARGV: the generation's id. Deletes the generation under construction if it is this one.
if redis.call('HGET', META, 'b:id') == ARGV[1] then
    give_up_building()
end
return reply('ok')
