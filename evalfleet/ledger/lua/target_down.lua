-- with _target
-- A worker has had no answer of a target for some seconds. Unless somebody else has, it is down.
-- KEYS: target ; ARGV: in which words, wake channel, how long an answer to somebody counts (ms), TTL (ms)
local now = now_ms()
if now - tonumber(redis.call('HGET', KEYS[1], 'answered_at') or 0) < tonumber(ARGV[3]) then
  return 0
end
redis.call('HSET', KEYS[1], 'down', ARGV[1])
say_trouble(KEYS[1], now)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[2], '*')
return 1
