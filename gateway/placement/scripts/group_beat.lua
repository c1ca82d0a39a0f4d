-- Begin or extend a group's lease.
-- KEYS: 1 group  2 members  3 groups
-- ARGV: 1 group key  2 owner  3 name  4 ttl ms  5 lease the caller holds ('' begins one)  6 lease to give to a beginner  7 remembered for ms
-- Answer: {ok|lapsed|freeing, hash, number of members}; freeing: it has ended, and its sandboxes are not all gone
local now = now_ms()
local f = redis.call('HMGET', KEYS[1], 'state', 'lease')
local lease = ARGV[5]
if f[1] == 'ended' then
  if lease == f[2] and lease ~= '' then return { 'lapsed', redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) } end
  if redis.call('ZCARD', KEYS[2]) > 0 then return { 'freeing', redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) } end
  redis.call('DEL', KEYS[1])
  f = { false, false }
end
local held = f[2] or ''
if lease == '' then
  lease = held ~= '' and held or ARGV[6]
elseif held ~= '' and held ~= lease then
  return { 'lapsed', redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) }
end
local due = string.format('%.0f', now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'name', ARGV[3], 'state', 'open', 'lease', lease, 'ttl', ARGV[4], 'due', due)
redis.call('PERSIST', KEYS[1])
redis.call('ZADD', KEYS[3], due, ARGV[1])
return { 'ok', redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) }
