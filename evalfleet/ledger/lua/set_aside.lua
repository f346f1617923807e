-- with _rows
-- The server refuses to record these attempts: they are not done, nothing of them waits, and nobody tries again before a
-- resume, which sends their evidence once more.
-- KEYS: records done plays grading givenup meta ; ARGV: wake channel, submission, then (attempt, entry)...
for i = 3, #ARGV, 2 do
  redis.call('HDEL', KEYS[1], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('HDEL', KEYS[4], ARGV[i])
  drop_outcome(KEYS[2], ARGV[i])
  redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1])
end
local t = redis.call('TIME')
redis.call('HSET', KEYS[6], 'progress_at', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('PUBLISH', ARGV[1], ARGV[2])
return #ARGV
