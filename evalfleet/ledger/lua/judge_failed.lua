-- A grading had no judge: how many in a row is that, and does grading pause?  (S26)
-- KEYS: meta judge ; ARGV: how many pause it, for how long (ms), reason ; answers 0 fewer, 1 just as many, 2 more
local row = redis.call('HINCRBY', KEYS[1], 'judge_failed', 1)
local most = tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'judge_trouble', ARGV[3])
if row < most then
  return 0
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
return row == most and 1 or 2
