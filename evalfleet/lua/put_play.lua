-- A scenario has been played and waits for its graders. The first one wins.
-- KEYS: plays done records ; ARGV: attempt, play
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 or redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then
  return 0
end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
