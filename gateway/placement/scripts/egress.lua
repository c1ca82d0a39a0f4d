-- Store what a sandbox may reach from now on; nothing changes for another incarnation.
-- KEYS: 1 record  2 tombstone
-- ARGV: 1 incarnation  2 what it may reach (JSON)
-- Answer: {record|tombstone|missing, hash}
local r = read(KEYS[1])
if r and r.inc == ARGV[1] then
  r.egress = ARGV[2]
  redis.call('HSET', KEYS[1], 'egress', ARGV[2])
end
return entry(r, KEYS[2])
