-- with _target
-- Who wants places of the fleet, how many, with what weight, and how many may be open on its target?
-- KEYS: meta ; ARGV: how many this submission wants, key prefix, for how long a word counts (ms)
-- Answers (submission, target, weight, want, target's most or -1)... of all whose dispatcher has spoken lately
local now = now_ms()
if redis.call('HGET', KEYS[1], 'state') == 'running' then
  redis.call('HSET', KEYS[1], 'want', ARGV[1], 'want_at', now)
end
local answer = {}
for _, submission in ipairs(redis.call('SMEMBERS', ARGV[2] .. 'subs')) do
  local m = redis.call('HMGET', ARGV[2] .. 's:' .. submission .. ':meta', 'state', 'target', 'weight', 'want', 'want_at')
  if m[1] == 'running' and m[5] and now - tonumber(m[5]) < tonumber(ARGV[3]) then
    local most = target_room(m[2] or '', ARGV[2], now)
    for _, part in ipairs({submission, m[2] or '', m[3] or '1', m[4], most < math.huge and most or -1}) do
      answer[#answer + 1] = part
    end
  end
end
return answer
