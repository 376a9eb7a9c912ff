-- How the ranking stands: 'cold', or 'ok' or 'behind' with position, epoch, capacity, 1 if it is to be built
-- anew, and its generation.
if not open(live) then
    return reply('cold')
end
local epoch = epoch_now()
if not epoch then
    return reply('replica')
end
local fields = redis.call('HMGET', META, 'epoch', 'pos', 'want_dense')
return reply(fields[1] == epoch and 'ok' or 'behind', fields[2], epoch, live.cap or false,
             fields[3] == '1' and not live.dense, live.id)
