-- Take or renew the controller's lease. Terms only rise, also over a wiped store: they start from the server's clock, in microseconds,
-- because two leaders can be elected within one millisecond when the store is wiped between them.
-- KEYS: 1 lease  2 last term
-- ARGV: 1 holder  2 ttl ms  3 least term (what the holder itself has seen)
-- Answer: the term, or 0 when another leads
local f = redis.call('HMGET', KEYS[1], 'holder', 'term')
if f[1] == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(f[2])
end
if f[1] then return 0 end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local clock = redis.call('TIME')
local term = math.max(clock[1] * 1000000 + clock[2], last + 1, tonumber(ARGV[3]) + 1)
local text = string.format('%.0f', term)
redis.call('SET', KEYS[2], text)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'term', text)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return term
