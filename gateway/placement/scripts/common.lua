-- Shared by every step; the loader puts it in front of each script. Defines functions only.
-- A record's hash: doc owner inc fp status endpoint created ready ready_by life idle hb active beat ended reason fault message expires spare leaving leaving_reason
-- leaving_fault leaving_message egress (JSON, once it was changed) request (what made it) begun ('' while its creation is queued)
-- (times and durations in milliseconds, '' where there is none).

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function number(value)
  if not value or value == '' then return nil end
  return tonumber(value)
end

-- The time when the record's first limit runs out, and which: nil where none does.
local function deadline(key, keep_failed)
  local f = redis.call('HMGET', key, 'status', 'created', 'ready_by', 'life', 'idle', 'hb', 'active', 'beat', 'ended')
  local at, why
  local function earlier(moment, cause)
    if moment and (not at or moment < at) then at, why = moment, cause end
  end
  local function after(moment, span)
    if number(moment) and number(span) then return number(moment) + number(span) end
  end
  local status = f[1]
  if status == 'failed' then
    return (number(f[9]) or 0) + keep_failed, 'failed'
  end
  earlier(after(f[2], f[4]), 'ttl')
  if status == 'pending' then
    earlier(number(f[3]), 'ready-timeout')
  else
    earlier(after(f[7], f[5]), 'idle')
    earlier(after(f[8], f[6]), 'heartbeat')
  end
  return at, why
end

-- Puts the record's next deadline where the controller finds it. Every record is in `due`, so it is also the index of all.
local function schedule(key, due, id, keep_failed)
  local at = deadline(key, keep_failed)
  redis.call('HSET', key, 'expires', at and string.format('%.0f', at) or '')
  redis.call('ZADD', due, at and string.format('%.0f', at) or '+inf', id)
end

-- True when a controller with a newer term has written here: the caller must stop.
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

-- Numbers the change of a record: `changes` holds the latest change of each id, the highest number last: of a thousand ids at most, and of
-- the last hour. The first number is the time, so that a number of a history that was lost is never taken for one of this.
local function note_change(changes, id)
  local last = redis.call('ZREVRANGE', changes, 0, 0, 'WITHSCORES')
  redis.call('ZADD', changes, string.format('%.0f', tonumber(last[2] or now_ms()) + 1), id)
  redis.call('ZREMRANGEBYRANK', changes, 0, -1001)
  redis.call('EXPIRE', changes, 3600)
end

local function end_record(key, tomb, due, owned, changes, id, reason, fault, message, ttl)
  local f = redis.call('HMGET', key, 'owner', 'inc')
  redis.call('DEL', key)
  redis.call('ZREM', due, id)
  redis.call('ZREM', owned, id)
  redis.call('DEL', tomb)
  redis.call('HSET', tomb, 'owner', f[1], 'inc', f[2], 'reason', reason, 'fault', fault, 'message', message, 'ended', string.format('%.0f', now_ms()))
  redis.call('PEXPIRE', tomb, ttl)
  note_change(changes, id)
end

local function entry(key, tomb)
  if redis.call('EXISTS', key) == 1 then return { 'record', redis.call('HGETALL', key) } end
  if redis.call('EXISTS', tomb) == 1 then return { 'tombstone', redis.call('HGETALL', tomb) } end
  return { 'missing', {} }
end
