-- Set fields of a sandbox that has not failed, which do not change its deadline; nothing changes for another incarnation.
-- KEYS: 1 record  2 tombstone  3 term
-- ARGV: 1 incarnation  2 term ('' from a gateway)  3 name  4 value, and so on in pairs
-- Answer: {record|tombstone|missing, hash}
if fenced(KEYS[3], ARGV[2]) then return FENCED end
local r = read(KEYS[1])
if r and r.inc == ARGV[1] and r.status ~= 'failed' then
  for i = 3, #ARGV, 2 do r[ARGV[i]] = ARGV[i + 1] end
  redis.call('HSET', KEYS[1], unpack(ARGV, 3))
end
return entry(r, KEYS[2])
