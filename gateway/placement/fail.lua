-- pending or ready → failed, for this incarnation only; the record stays with its cause.
-- KEYS: 1 record  2 tombstone  3 due  4 term
-- ARGV: 1 id  2 incarnation  3 reason  4 fault  5 message  6 keep_failed  7 term ('' from a gateway)
-- Answer: {record|tombstone|missing|fenced, hash}
if fenced(KEYS[4], ARGV[7]) then return { 'fenced', {} } end
local f = redis.call('HMGET', KEYS[1], 'inc', 'status')
if f[1] == ARGV[2] and f[2] ~= 'failed' then
  redis.call('HSET', KEYS[1], 'status', 'failed', 'endpoint', '', 'ended', string.format('%.0f', now_ms()),
    'reason', ARGV[3], 'fault', ARGV[4], 'message', ARGV[5])
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[6]))
end
return entry(KEYS[1], KEYS[2])
