-- A worker lives; what of the conversations it holds?  (I6, and "Redis came back empty")
-- KEYS: epoch incarnation ; ARGV: px, info, grace ms, key prefix of submissions, then (submission, conversation)...
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[1])
redis.call('SET', KEYS[1], now + tonumber(ARGV[3]), 'NX')
local grace = now < tonumber(redis.call('GET', KEYS[1]))
local me = string.match(KEYS[2], '[^:]+$')
local answer = {}
for i = 5, #ARGV, 2 do
  local base = ARGV[4] .. ARGV[i] .. ':'
  local owner = redis.call('HGET', base .. 'claims', ARGV[i + 1])
  if not owner and grace then
    redis.call('HSET', base .. 'claims', ARGV[i + 1], me)
    owner = me
  end
  local state = redis.call('HGET', base .. 'meta', 'state')
  if state and state ~= 'running' then
    local left = redis.call('HGET', base .. 'meta', 'code') == 'leave_running'
    answer[#answer + 1] = left and 'left' or 'stopped'
  elseif owner ~= me then
    answer[#answer + 1] = 'lost'
  elseif redis.call('HGET', base .. 'meta', 'draining') == '1' then
    answer[#answer + 1] = 'draining'
  else
    answer[#answer + 1] = 'held'
  end
end
return answer
