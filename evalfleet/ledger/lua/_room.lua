-- How many conversations of a submission may be open now? And when none may be begun any more, why?  (I7)
-- What has no price yet counts as the mean; until there is a mean, only a few are begun under a budget.
local BLIND = 4
local function may_be_open(meta, now)
  local m = redis.call('HMGET', meta, 'concurrency', 'deadline', 'budget', 'spent', 'chats', 'unpriced', 'currency')
  local most = tonumber(m[1]) or 1
  if m[2] and now >= tonumber(m[2]) then
    return 0, 'max_time'
  end
  if not m[3] then
    return most, ''
  end
  if m[7] == 'mixed' then
    return 0, 'budget_currencies'
  end
  local budget, spent = tonumber(m[3]), tonumber(m[4] or 0)
  local chats, unpriced = tonumber(m[5] or 0), tonumber(m[6] or 0)
  if chats == 0 then
    if unpriced >= BLIND then
      return 0, 'budget_unpriced'
    end
    return math.min(most, BLIND), ''
  end
  if spent == 0 then
    return most, ''
  end
  local left = (budget - spent) * chats - spent * unpriced
  if left <= 0 then
    return 0, 'budget'
  end
  return math.min(most, math.ceil(left / spent)), ''
end
