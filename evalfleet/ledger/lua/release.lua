-- This worker no longer plays this conversation; what it cost and how long it took is counted with it (S15).
-- KEYS: claims returned givenup meta spent tries
-- ARGV: conversation, incarnation, 'done' | 'return', why it was given up or '', wake channel, submission,
--       ms played, attempts in it, then (try, billionths or '', currency)...
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
for i = 9, #ARGV, 3 do
  local name = ARGV[1] .. '/' .. ARGV[i]
  local before, amount, currency = redis.call('HGET', KEYS[5], name), ARGV[i + 1], ARGV[i + 2]
  if before and before ~= '' and amount == '' then
    amount = before
  end
  if before then -- the same chat again: its later reading counts
    redis.call('HINCRBY', KEYS[4], before == '' and 'unpriced' or 'chats', -1)
  end
  redis.call('HINCRBY', KEYS[4], amount == '' and 'unpriced' or 'chats', 1)
  redis.call('HINCRBY', KEYS[4], 'spent', string.format('%.0f', (tonumber(amount) or 0) - (tonumber(before) or 0)))
  redis.call('HSET', KEYS[5], name, amount)
  if amount ~= '' then
    local known = redis.call('HGET', KEYS[4], 'currency')
    if known ~= currency then
      redis.call('HSET', KEYS[4], 'currency', known and 'mixed' or currency)
    end
  end
end
if ARGV[3] == 'done' then
  for i = 9, #ARGV, 3 do -- it is not played again: nobody reads these chats another time
    redis.call('HDEL', KEYS[5], ARGV[1] .. '/' .. ARGV[i])
  end
  if ARGV[4] == '' then
    redis.call('HDEL', KEYS[6], ARGV[1])
  end
  redis.call('HINCRBY', KEYS[4], 'ended', 1)
  redis.call('HINCRBY', KEYS[4], 'played_ms', ARGV[7])
  redis.call('HINCRBY', KEYS[4], 'played', ARGV[8])
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
elseif ARGV[3] == 'return' and redis.call('HGET', KEYS[4], 'state') == 'running' then
  redis.call('RPUSH', KEYS[2], ARGV[1])
end
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 1
