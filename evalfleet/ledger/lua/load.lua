-- with _room
-- How much is under way, and how much may be?
-- KEYS: epoch meta claims published plays records
-- Answers claimed, published, waiting, 1 while nothing is claimed yet, how many may be open, why none may be any more
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local epoch = redis.call('GET', KEYS[1])
local most, closed = may_be_open(KEYS[2], now)
return {
  redis.call('HLEN', KEYS[3]),
  redis.call('HLEN', KEYS[4]),
  redis.call('HLEN', KEYS[5]) + redis.call('HLEN', KEYS[6]),
  (not epoch or now < tonumber(epoch)) and 1 or 0,
  most,
  closed,
}
