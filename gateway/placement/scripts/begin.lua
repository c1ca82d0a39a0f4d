-- The creation of a pending sandbox begins: its turn in the queue has come.
-- KEYS: 1 record  2 tombstone
-- ARGV: 1 incarnation
-- Answer: {record|tombstone|missing, hash}
local f = redis.call('HMGET', KEYS[1], 'inc', 'status', 'begun')
if f[1] == ARGV[1] and f[2] == 'pending' and f[3] == '' then redis.call('HSET', KEYS[1], 'begun', string.format('%.0f', now_ms())) end
return entry(KEYS[1], KEYS[2])
