-- Change entries of projects and keys, if nobody else has meanwhile.
-- KEYS: 1 tenants
-- ARGV: 1 the version that the change is based on  2... names and texts in turn ('' removes the entry)
-- Answer: 1, or 0 when the version is another one
if tonumber(redis.call('HGET', KEYS[1], '=version') or '0') ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], '=version', text(tonumber(ARGV[1]) + 1))
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
