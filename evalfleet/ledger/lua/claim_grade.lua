-- May this worker grade this attempt now?
-- KEYS: epoch meta plays grading givenup judge ; ARGV: attempt, incarnation, '1' if its graders may ask the judge
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local epoch = redis.call('GET', KEYS[1])
if not epoch or now < tonumber(epoch) or redis.call('HGET', KEYS[2], 'state') ~= 'running' then
  return false
end
if redis.call('HEXISTS', KEYS[5], ARGV[1]) == 1 or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[6]) == 1) then
  return false
end
local owner = redis.call('HGET', KEYS[4], ARGV[1])
if owner and owner ~= ARGV[2] then
  return false -- its owner is alive, or the reaper has yet to count it and take it back
end
local play = redis.call('HGET', KEYS[3], ARGV[1])
if play then
  redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
end
return play
