-- with _rows
-- A scenario has been played and waits for its graders. The first one wins.
-- KEYS: plays done records meta ; ARGV: attempt, play
if has_outcome(KEYS[2], ARGV[1]) or redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then
  return 0
end
local new = redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local ttl = redis.call('PTTL', KEYS[4])
if ttl > 0 then
  redis.call('PEXPIRE', KEYS[1], ttl) -- the submission is retired: what comes late runs out with it
end
return new
