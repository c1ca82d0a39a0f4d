-- The ids whose records have changed since a position was the latest.
-- KEYS: 1 changes
-- ARGV: 1 the position, '' where none is known, or '@' and a number of milliseconds before now
-- Answer: {the latest position ('0' before any), 1 where the ids are complete, id...}
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local latest = last[1] and last[1][1] or '0'
if ARGV[1] == latest then return { latest, 1 } end
if ARGV[1] == '' then return { latest, 0 } end
if string.sub(ARGV[1], 1, 1) == '@' then -- complete if the first change that is still there is older, or none was dropped
  local from = text(now_ms() - tonumber(string.sub(ARGV[1], 2)))
  local since = redis.call('XRANGE', KEYS[1], from, '+')
  local whole = redis.call('XLEN', KEYS[1]) > #since or #since < 1000
  local changed = {}
  for i = 1, #since do changed[i] = since[i][2][2] end
  return { latest, whole and 1 or 0, unpack(changed) }
end
if ARGV[1] == '0' then -- all there is happened since, unless the first of it was dropped
  local all = redis.call('XRANGE', KEYS[1], '-', '+')
  if #all >= 1000 then return { latest, 0 } end
  local every = {}
  for i = 1, #all do every[i] = all[i][2][2] end
  return { latest, 1, unpack(every) }
end
local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+')
-- Where the position itself is gone, more may have been dropped, or it is of a history that was lost.
if not found[1] or found[1][1] ~= ARGV[1] then return { latest, 0 } end
local ids = {}
for i = 2, #found do ids[i - 1] = found[i][2][2] end
return { latest, 1, unpack(ids) }
