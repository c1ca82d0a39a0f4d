-- Renew the leases of the recordings that a replica makes, and take those whose lease has expired.
-- KEYS: 1 recordings by the end of their lease (sorted set)  2 who holds which (hash)
-- ARGV: 1 replica  2 lease ms  3 most to take  4... its recordings
-- Answer: {those that another replica holds, those that it has taken}
local now, lost = now_ms(), {}
for i = 4, #ARGV do
  local holder = redis.call('HGET', KEYS[2], ARGV[i])
  if holder and holder ~= ARGV[1] then
    lost[#lost + 1] = ARGV[i]
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[1])
    redis.call('ZADD', KEYS[1], text(now + tonumber(ARGV[2])), ARGV[i])
  end
end
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[3])
for _, one in ipairs(taken) do
  redis.call('HSET', KEYS[2], one, ARGV[1])
  redis.call('ZADD', KEYS[1], text(now + tonumber(ARGV[2])), one)
end
return {lost, taken}
