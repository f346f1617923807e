-- This worker no longer plays this conversation.
-- KEYS: claims returned givenup meta
-- ARGV: conversation, incarnation, 'done' | 'return', why it was given up or '', wake channel, submission
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
elseif ARGV[3] == 'return' and redis.call('HGET', KEYS[4], 'state') == 'running' then
  redis.call('RPUSH', KEYS[2], ARGV[1])
end
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 1
