-- Record that a sandbox will end soon, and why.
-- KEYS: 1 record  2 tombstone  3 term
-- ARGV: 1 incarnation  2 reason  3 fault  4 message  5 deadline ms  6 term
-- Answer: {record|tombstone|missing|fenced, hash}
if fenced(KEYS[3], ARGV[6]) then return { 'fenced', {} } end
local f = redis.call('HMGET', KEYS[1], 'inc', 'status')
if f[1] == ARGV[1] and f[2] ~= 'failed' then
  redis.call('HSET', KEYS[1], 'leaving', ARGV[5], 'leaving_reason', ARGV[2], 'leaving_fault', ARGV[3], 'leaving_message', ARGV[4])
end
return entry(KEYS[1], KEYS[2])
