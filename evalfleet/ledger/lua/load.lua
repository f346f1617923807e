-- with _room
-- with _target
-- How much is under way, and how much may be?
-- KEYS: epoch meta claims published plays records ; ARGV: key prefix
-- Answers claimed, published, waiting, 1 while nothing is claimed yet, how many may be open, why none may be any more;
-- then of the target: how many may be open (-1: any number), then are open, for how long none is begun (ms), down or '',
-- why it refused, since when it takes nothing (ms ago; 0: it does), the last cut, and when that was (ms ago)
local now = now_ms()
local epoch = redis.call('GET', KEYS[1])
local most, closed = may_be_open(KEYS[2], now)
local target = redis.call('HGET', KEYS[2], 'target') or ''
local target_most, wait = target_room(target, ARGV[1], now)
local key = ARGV[1] .. 't:' .. target
local m = redis.call('HMGET', key, 'down', 'why', 'cut', 'cut_at')
local since = trouble_since(key, now)
return {
  redis.call('HLEN', KEYS[3]),
  redis.call('HLEN', KEYS[4]),
  redis.call('HLEN', KEYS[5]) + redis.call('HLEN', KEYS[6]),
  (not epoch or now < tonumber(epoch)) and 1 or 0,
  most,
  closed,
  target_most < math.huge and target_most or -1,
  target_most < math.huge and target_open(target, ARGV[1]) or 0,
  wait,
  since and m[1] or '',
  m[2] or '',
  since and math.max(1, now - since) or 0,
  tonumber(m[3] or 0),
  m[4] and now - tonumber(m[4]) or 0,
}
