-- This worker no longer plays this conversation.
-- KEYS: claims returned ; ARGV: conversation, incarnation, 'done' | 'return', wake channel, submission
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if ARGV[3] == 'return' then
    redis.call('RPUSH', KEYS[2], ARGV[1])
  end
  redis.call('PUBLISH', ARGV[4], ARGV[5])
  return 1
end
return 0
