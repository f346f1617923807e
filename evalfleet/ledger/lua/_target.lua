-- Since when (ms) has it taken nothing? nil when it does: whoever is turned away says so again and again.
local SAID_MS = 120000
local function trouble_since(target, now)
  local m = redis.call('HMGET', target, 'since', 'said_at', 'until')
  if m[1] and (now - tonumber(m[2]) < SAID_MS or now < tonumber(m[3] or 0)) then
    return tonumber(m[1])
  end
  return nil
end

-- How many runs may be open on a target, over all submissions, and for how long is none begun?
-- After a cut the limit rises by one each second; a target that is down has one run open, which goes on asking.
local RISE_MS = 1000
local function target_room(name, prefix, now)
  local target = prefix .. 't:' .. name
  local m = redis.call('HMGET', target, 'cut', 'rises_from', 'until', 'down')
  local most = tonumber(redis.call('GET', target .. ':ceiling') or math.huge)
  if m[1] then
    most = math.min(most, tonumber(m[1]) + math.floor(math.max(0, now - tonumber(m[2])) / RISE_MS))
  end
  if m[4] and trouble_since(target, now) then
    most = 1
  end
  return most, math.max(0, tonumber(m[3] or 0) - now)
end

local function target_open(name, prefix)
  local open = 0
  for _, submission in ipairs(redis.call('SMEMBERS', prefix .. 'subs')) do
    if redis.call('HGET', prefix .. 's:' .. submission .. ':meta', 'target') == name then
      open = open + redis.call('HLEN', prefix .. 's:' .. submission .. ':claims')
    end
  end
  return open
end

local function say_trouble(target, now)
  redis.call('HSET', target, 'since', trouble_since(target, now) or now, 'said_at', now)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
