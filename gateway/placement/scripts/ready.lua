-- pending → ready, for this incarnation only; answers the entry as it stands.
-- KEYS: 1 record  2 tombstone  3 due  4 term  5 changes
-- ARGV: 1 id  2 incarnation  3 endpoint  4 keep_failed  5 term ('' from a gateway)
-- Answer: {record|tombstone|missing|fenced, hash}
if fenced(KEYS[4], ARGV[5]) then return { 'fenced', {} } end
local f = redis.call('HMGET', KEYS[1], 'inc', 'status')
if f[1] == ARGV[2] and f[2] == 'pending' then
  local now = string.format('%.0f', now_ms())
  redis.call('HSET', KEYS[1], 'status', 'ready', 'endpoint', ARGV[3], 'ready', now, 'active', now)
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[4]))
  note_change(KEYS[5], ARGV[1])
end
return entry(KEYS[1], KEYS[2])
