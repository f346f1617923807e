-- Takes back what dead workers held; only here are losses counted.
-- KEYS: epoch claims grading losses givenup returned ; ARGV: prefix of incarnation keys, most losses, reason
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local epoch = redis.call('GET', KEYS[1])
if not epoch or now < tonumber(epoch) then
  return {}
end
local taken = {}
local function dead(owner)
  return redis.call('EXISTS', ARGV[1] .. owner) == 0
end
local claims = redis.call('HGETALL', KEYS[2])
for i = 1, #claims, 2 do
  if dead(claims[i + 1]) then
    redis.call('HDEL', KEYS[2], claims[i])
    local n = redis.call('HINCRBY', KEYS[4], claims[i], 1)
    if n >= tonumber(ARGV[2]) then
      redis.call('HSET', KEYS[5], claims[i], ARGV[3])
    else
      redis.call('RPUSH', KEYS[6], claims[i])
    end
    taken[#taken + 1] = claims[i]
  end
end
local grading = redis.call('HGETALL', KEYS[3])
for i = 1, #grading, 2 do
  if dead(grading[i + 1]) then
    redis.call('HDEL', KEYS[3], grading[i])
    local n = redis.call('HINCRBY', KEYS[4], grading[i], 1)
    if n >= tonumber(ARGV[2]) then
      redis.call('HSET', KEYS[5], grading[i], ARGV[3])
    end
    taken[#taken + 1] = grading[i]
  end
end
return taken
