-- with _target
-- A target has taken a run, or answers again: what paused for it goes on.
-- KEYS: target ; ARGV: wake channel, TTL (ms)
local was = redis.call('HDEL', KEYS[1], 'down', 'since')
redis.call('HSET', KEYS[1], 'answered_at', now_ms())
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if was > 0 then
  redis.call('PUBLISH', ARGV[1], '*')
end
return was
