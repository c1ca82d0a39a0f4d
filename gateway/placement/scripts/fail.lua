-- pending or ready → failed, or only from one of them, for this incarnation only; the record stays with its cause. A sandbox that was
-- announced to leave gets that cause: later reports of its end ("gone") carry less. This does not hold for an end by the workload itself.
-- KEYS: 1 record  2 tombstone  3 due  4 term  5 changes
-- ARGV: 1 id  2 incarnation  3 reason  4 fault  5 message  6 keep_failed  7 term ('' from a gateway)  8 the status it must have ('' either)
-- Answer: {record|tombstone|missing|fenced, hash}
if fenced(KEYS[4], ARGV[7]) then return { 'fenced', {} } end
local f = redis.call('HMGET', KEYS[1], 'inc', 'status')
if f[1] == ARGV[2] and f[2] ~= 'failed' and (ARGV[8] == '' or f[2] == ARGV[8]) then
  local why = { ARGV[3], ARGV[4], ARGV[5] }
  local known = redis.call('HMGET', KEYS[1], 'leaving_reason', 'leaving_fault', 'leaving_message')
  if known[1] and ARGV[4] == 'infrastructure' then why = known end
  redis.call('HSET', KEYS[1], 'status', 'failed', 'endpoint', '', 'ended', string.format('%.0f', now_ms()),
    'reason', why[1], 'fault', why[2], 'message', why[3])
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[6]))
  note_change(KEYS[5], ARGV[1])
end
return entry(KEYS[1], KEYS[2])
