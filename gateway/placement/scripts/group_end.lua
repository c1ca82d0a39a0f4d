-- End a group: nothing can join it any more, and the controller deletes its sandboxes. For its owner, and for the controller once its lease expired.
-- KEYS: 1 group  2 members  3 groups  4 term
-- ARGV: 1 group key  2 reason  3 message  4 remembered for ms  5 term ('' its owner)  6 the program that ends it ('' unknown)
-- Answer: {ended|later|missing, hash, some members and when they joined, number of members}; later: its lease has not expired
if fenced(KEYS[4], ARGV[5]) then return FENCED end
local f = redis.call('HMGET', KEYS[1], 'state', 'due', 'lease')
if not f[1] then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return { 'missing', {}, {}, 0 }
end
local now = now_ms()
if f[1] == 'open' then
  if ARGV[5] ~= '' and (f[2] == '' or tonumber(f[2]) > now) then return { 'later', {}, {}, 0 } end
  redis.call('HSET', KEYS[1], 'state', 'ended', 'reason', ARGV[2], 'message', ARGV[3], 'ended', text(now), 'by', ARGV[6])
  redis.call('ZADD', KEYS[3], text(now), ARGV[1])
end
local left = redis.call('ZCARD', KEYS[2])
if left == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return { 'ended', redis.call('HGETALL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, 499, 'WITHSCORES'), left }
