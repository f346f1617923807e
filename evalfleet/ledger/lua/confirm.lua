-- with _rows
-- The server has confirmed these attempts: they are done, and exactly these fields leave Redis (I4).
-- KEYS: records done plays grading meta ; ARGV: wake channel, submission, then (attempt, outcome)...
for i = 3, #ARGV, 2 do
  redis.call('HDEL', KEYS[1], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('HDEL', KEYS[4], ARGV[i])
  put_outcome(KEYS[2], ARGV[i], ARGV[i + 1])
end
local t = redis.call('TIME')
redis.call('HSET', KEYS[5], 'progress_at', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('PUBLISH', ARGV[1], ARGV[2])
return #ARGV
