-- Store what a sandbox may reach from now on; nothing changes for another incarnation.
-- KEYS: 1 record  2 tombstone
-- ARGV: 1 incarnation  2 what it may reach (JSON)
-- Answer: {record|tombstone|missing, hash}
if redis.call('HGET', KEYS[1], 'inc') == ARGV[1] then redis.call('HSET', KEYS[1], 'egress', ARGV[2]) end
return entry(KEYS[1], KEYS[2])
