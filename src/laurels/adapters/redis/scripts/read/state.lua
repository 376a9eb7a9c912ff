-- Returns the state of the ranking: 'cold', or 'ok' or 'stale' with position, epoch, 1 if it must be rebuilt, and its
-- generation. The last element is how many users a build in progress has loaded, or false.
local loaded = redis.call('HEXISTS', META, 'b:id') == 1 and redis.call('HLEN', PREFIX .. 'b:h')
if not open(live) then
    return reply('cold', loaded)
end
local epoch = epoch_now()
if not epoch then
    return reply('replica')
end
local fields = redis.call('HMGET', META, 'epoch', 'pos', 'want_dense')
return reply(fields[1] == epoch and 'ok' or 'stale', fields[2], epoch,
             fields[3] == '1' and not live.dense, live.id, loaded)
