-- with _target
-- A target did not take a conversation's run, for a minute: how often has that been, while it took others'?
-- KEYS: meta tries ; ARGV: conversation, key prefix ; 0 while the target takes nothing: that is no fault of this one
if trouble_since(ARGV[2] .. 't:' .. (redis.call('HGET', KEYS[1], 'target') or ''), now_ms()) then
  return 0
end
return redis.call('HINCRBY', KEYS[2], 'a' .. ARGV[1], 1)
