-- with _rows
-- An attempt is judged and waits for the aggregator. The first record wins.
-- KEYS: records done plays grading outcomes counts hint meta
-- ARGV: attempt, record, outcome, wake channel, submission ; answers 1 when the aggregator should be called
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
if has_outcome(KEYS[2], ARGV[1]) then
  return 0
end
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1 then
  if not has_outcome(KEYS[5], ARGV[1]) then
    put_outcome(KEYS[5], ARGV[1], ARGV[3])
    redis.call('HINCRBY', KEYS[6], ARGV[3], 1)
  end
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[8], 'progress_at', t[1] * 1000 + math.floor(t[2] / 1000))
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
local ttl = redis.call('PTTL', KEYS[8])
if ttl > 0 then -- the submission is retired: what comes late runs out with it
  for _, name in ipairs({1, 5, 6}) do
    redis.call('PEXPIRE', KEYS[name], ttl)
  end
end
if redis.call('SET', KEYS[7], '1', 'NX', 'PX', 5000) then
  return 1
end
return 0
