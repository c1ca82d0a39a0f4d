-- Record that a sandbox will end soon, and why.
-- KEYS: 1 record  2 tombstone  3 term
-- ARGV: 1 incarnation  2 reason  3 fault  4 message  5 deadline ms  6 term
-- Answer: {record|tombstone|missing|fenced, hash}
if fenced(KEYS[3], ARGV[6]) then return { 'fenced', {} } end
local r = read(KEYS[1])
if r and r.inc == ARGV[1] and r.status ~= 'failed' then
  local why = { leaving = ARGV[5], leaving_reason = ARGV[2], leaving_fault = ARGV[3], leaving_message = ARGV[4] }
  for name, value in pairs(why) do r[name] = value end
  redis.call('HSET', KEYS[1], unpack(pairs_of(why)))
end
return entry(r, KEYS[2])
