-- with _room
-- with _rows
-- with _target
-- May this worker play this conversation now?  (I3, I6, I7)
-- KEYS: epoch meta claims givenup done records plays published returned
-- ARGV: conversation, incarnation, key prefix, attempt...
local now = now_ms()
local epoch = redis.call('GET', KEYS[1])
redis.call('HDEL', KEYS[8], ARGV[1])
if not epoch or now < tonumber(epoch) then
  return 'grace'
end
if redis.call('HGET', KEYS[2], 'state') ~= 'running' or redis.call('HGET', KEYS[2], 'draining') == '1' then
  return 'stopped'
end
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  return 'given_up'
end
local open = false
for i = 4, #ARGV do
  if not has_outcome(KEYS[5], ARGV[i]) and redis.call('HEXISTS', KEYS[6], ARGV[i]) == 0
      and redis.call('HEXISTS', KEYS[7], ARGV[i]) == 0 and redis.call('HEXISTS', KEYS[4], ARGV[i]) == 0 then
    open = true
    break
  end
end
if not open then
  return 'done'
end
local owner = redis.call('HGET', KEYS[3], ARGV[1])
if owner == ARGV[2] then
  return 'claimed' -- the answer to its first asking got lost; a worker never asks for what it plays
end
if owner then
  return 'duplicate' -- its owner is alive, or the reaper has yet to take the claim back
end
local refused
if redis.call('HGET', KEYS[2], 'paused') == '1' then
  refused = 'paused'
elseif redis.call('HLEN', KEYS[3]) >= (may_be_open(KEYS[2], now)) then
  refused = 'full'
else
  local target = redis.call('HGET', KEYS[2], 'target') or ''
  local most, wait = target_room(target, ARGV[3], now)
  if wait > 0 or (most < math.huge and target_open(target, ARGV[3]) >= most) then
    refused = 'busy'
  end
end
if refused then
  redis.call('RPUSH', KEYS[9], ARGV[1])
  return refused
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
return 'claimed'
