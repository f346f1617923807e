-- with _target
-- A target refused a request for now: nobody begins anything before the time that it named, and then half as much (AIMD).
-- KEYS: target ; ARGV: how long it asks to wait (ms), in which words, key prefix, wake channel, TTL beyond that, its name
-- What is refused before others have heard of a refusal belongs to the same one, and cuts nothing more.
local CUT_MS = 1000
local now = now_ms()
local m = redis.call('HMGET', KEYS[1], 'cut_at', 'until')
local before = tonumber(m[2] or 0)
local wait_until = math.max(before, now + tonumber(ARGV[1]))
say_trouble(KEYS[1], now)
redis.call('HSET', KEYS[1], 'until', wait_until, 'why', ARGV[2])
local cut = 0
if now >= before and now - tonumber(m[1] or 0) >= CUT_MS then
  local most = target_room(ARGV[6], ARGV[3], now)
  cut = math.max(1, math.floor(math.min(most, target_open(ARGV[6], ARGV[3])) / 2))
  redis.call('HSET', KEYS[1], 'cut', cut, 'cut_at', now)
end
redis.call('HSET', KEYS[1], 'rises_from', wait_until)
redis.call('PEXPIRE', KEYS[1], wait_until - now + ARGV[5])
redis.call('PUBLISH', ARGV[4], '*')
return cut
