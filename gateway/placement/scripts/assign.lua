-- Store what a pending sandbox is created from, once, so that two replicas that create the same one do it in the same way.
-- KEYS: 1 record
-- ARGV: 1 incarnation  2 the spare it is created from, or 'cold'  3 the value that this replaces ('' for none)
-- Answer: the stored value, '' when there is no such pending sandbox
local f = redis.call('HMGET', KEYS[1], 'inc', 'status', 'spare')
if f[1] ~= ARGV[1] or f[2] ~= 'pending' then return '' end
local now = f[3] or ''
if now ~= ARGV[3] then return now end
redis.call('HSET', KEYS[1], 'spare', ARGV[2])
return ARGV[2]
