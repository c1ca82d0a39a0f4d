-- Shared by every step; the loader puts it in front of each script. Only defines.
-- A record's hash: doc owner inc fp status endpoint created ready ready_by life idle hb active beat ended reason fault message expires spare leaving leaving_reason
-- leaving_fault leaving_message egress (JSON, once it was changed) request (what made it) begun ('' while its creation is queued)
-- paused (memory or disk) paused_at  changed ('1' once labels or limits were changed) labels (JSON, once they were changed)
-- (times and durations in milliseconds, '' or missing where there is none).

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function text(number)
  return string.format('%.0f', number)
end

local function number(value)
  if not value or value == '' then return nil end
  return tonumber(value)
end

-- A hash as a table, nil where there is none.
local function read(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then return nil end
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- The names and values of a table in turn.
local function pairs_of(fields)
  local flat = {}
  for name, value in pairs(fields) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  return flat
end

-- The time when a record's first limit runs out, and which: nil where none does.
local function deadline(record, keep_failed)
  local at, why
  local function earlier(moment, cause)
    if moment and (not at or moment < at) then at, why = moment, cause end
  end
  local function after(moment, span)
    if number(moment) and number(span) then return number(moment) + number(span) end
  end
  if record.status == 'failed' then
    return (number(record.ended) or 0) + keep_failed, 'failed'
  end
  if record.paused and record.paused ~= '' then return nil end
  earlier(after(record.created, record.life), 'ttl')
  if record.status == 'pending' then
    earlier(number(record.ready_by), 'ready-timeout')
  else
    earlier(after(record.active, record.idle), 'idle')
    earlier(after(number(record.beat) and record.beat or record.ready, record.hb), 'heartbeat')
  end
  return at, why
end

-- Stores fields of a record that have changed, and its next deadline where the controller finds it. Every record is in `due`, so it is
-- also the index of all.
local function save(key, due, id, record, changed, keep_failed)
  for name, value in pairs(changed) do record[name] = value end
  local at = deadline(record, keep_failed)
  changed.expires = at and text(at) or ''
  record.expires = changed.expires
  redis.call('HSET', key, unpack(pairs_of(changed)))
  redis.call('ZADD', due, at and text(at) or '+inf', id)
end

local FENCED = redis.error_reply('FENCED a newer controller leads')

-- True when a controller with a newer term has written here: the step must answer FENCED, an error that `redis_connection` knows.
local function fenced(term_key, term)
  if term == '' then return false end
  local seen = tonumber(redis.call('GET', term_key) or '0')
  if tonumber(term) < seen then return true end
  if tonumber(term) > seen then redis.call('SET', term_key, term) end
  return false
end

-- Removes a value under a record's key that no gateway wrote.
local function remove_unreadable(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return end
  local good = false
  if kind == 'hash' then
    local f = redis.call('HMGET', key, 'doc', 'owner', 'inc', 'status', 'created')
    good = f[1] and f[2] and f[3] and f[4] and number(f[5]) and pcall(cjson.decode, f[1])
  end
  if not good then redis.call('DEL', key) end
end

-- Appends the change of a record to `changes`: a stream's own ids rise even if the clock is set back.
local function note_change(changes, id)
  redis.call('XADD', changes, 'MAXLEN', 1000, '*', 'id', id)
end

-- Whether an id without a record is not known to be unused: records are being rebuilt, or were a moment ago.
local function incomplete(marker, settling)
  return redis.call('EXISTS', marker) == 0 or redis.call('EXISTS', settling) == 1
end

local function end_record(key, tomb, due, owned, changes, id, record, reason, fault, message, ttl, by)
  redis.call('DEL', key, tomb)
  redis.call('ZREM', due, id)
  redis.call('ZREM', owned, id)
  redis.call('HSET', tomb, 'owner', record.owner, 'inc', record.inc, 'reason', reason, 'fault', fault, 'message', message, 'ended', text(now_ms()),
    'by', by or '')
  redis.call('PEXPIRE', tomb, ttl)
  note_change(changes, id)
end

-- What tells two states of a record apart for a conditional change: `redis_steps` has the same.
local function version(record)
  local parts = {}
  for at, name in ipairs({ 'inc', 'status', 'labels', 'life', 'idle', 'hb', 'egress', 'paused', 'leaving', 'reason' }) do
    parts[at] = record[name] or ''
  end
  return redis.sha1hex(table.concat(parts, '\0'))
end

-- The answer of a step: the record, else the tombstone.
local function entry(record, tomb)
  if record then return { 'record', pairs_of(record) } end
  local ended = redis.call('HGETALL', tomb)
  if #ended > 0 then return { 'tombstone', ended } end
  return { 'missing', {} }
end
