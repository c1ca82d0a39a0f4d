-- The creation of a pending sandbox begins: its turn in the queue has come.
-- KEYS: 1 record  2 tombstone
-- ARGV: 1 incarnation
-- Answer: {record|tombstone|missing, hash}
local r = read(KEYS[1])
if r and r.inc == ARGV[1] and r.status == 'pending' and r.begun == '' then
  r.begun = text(now_ms())
  redis.call('HSET', KEYS[1], 'begun', r.begun)
end
return entry(r, KEYS[2])
