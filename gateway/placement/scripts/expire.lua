-- End one sandbox if its time has really run out by now.
-- KEYS: 1 record  2 tombstone  3 due  4 owned  5 term  6 changes
-- ARGV: 1 id  2 keep_failed  3 tombstone ttl ms  4 term  5 '1' where its agent must be asked before it ends for being idle
-- Answer: {expired|kept|ask|later|missing|fenced, hash as it was, cause}; kept: failed but still recorded
if fenced(KEYS[5], ARGV[4]) then return { 'fenced', {}, '' } end
remove_unreadable(KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  note_change(KEYS[6], ARGV[1])
  return { 'missing', {}, '' }
end
local keep = tonumber(ARGV[2])
local at, why = deadline(KEYS[1], keep)
if not at or at > now_ms() then
  schedule(KEYS[1], KEYS[3], ARGV[1], keep)
  return { 'later', {}, '' }
end
local was = redis.call('HGETALL', KEYS[1])
if why == 'idle' and ARGV[5] == '1' then return { 'ask', was, why } end
if why == 'ready-timeout' then
  redis.call('HSET', KEYS[1], 'status', 'failed', 'ended', string.format('%.0f', now_ms()),
    'reason', why, 'fault', 'infrastructure', 'message', 'it did not become ready in time')
  schedule(KEYS[1], KEYS[3], ARGV[1], keep)
  note_change(KEYS[6], ARGV[1])
  return { 'kept', was, why }
end
local f = redis.call('HMGET', KEYS[1], 'reason', 'fault', 'message')
if why ~= 'failed' then f = { why, 'caller', 'its ' .. why .. ' limit was reached' } end
end_record(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], ARGV[1], f[1], f[2], f[3], ARGV[3])
return { 'expired', was, f[1] }
