-- Outcomes of many attempts: `case:scenario` -> a letter for each of its trials, '.' where there is none; '#' -> how many
-- there are. A field for each attempt would take fifty times the memory. (evalfleet/ledger/rows.py reads and writes it too)
local function row_of(attempt)
  local row, trial = string.match(attempt, '^(%d+:%d+):(%d+)$')
  return row, tonumber(trial) + 1
end
local function has_outcome(key, attempt)
  local row, at = row_of(attempt)
  local letters = redis.call('HGET', key, row)
  return letters and at <= #letters and string.sub(letters, at, at) ~= '.'
end
local function drop_outcome(key, attempt)
  if has_outcome(key, attempt) then
    local row, at = row_of(attempt)
    local letters = redis.call('HGET', key, row)
    redis.call('HSET', key, row, string.sub(letters, 1, at - 1) .. '.' .. string.sub(letters, at + 1))
    redis.call('HINCRBY', key, '#', -1)
  end
end
local function put_outcome(key, attempt, outcome)
  local row, at = row_of(attempt)
  local letters = redis.call('HGET', key, row) or ''
  if at > #letters then
    letters = letters .. string.rep('.', at - #letters)
  end
  if string.sub(letters, at, at) == '.' then
    redis.call('HINCRBY', key, '#', 1)
  end
  redis.call('HSET', key, row, string.sub(letters, 1, at - 1) .. string.sub(outcome, 1, 1) .. string.sub(letters, at + 1))
end
