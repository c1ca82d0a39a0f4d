-- Write all entries of projects and keys where Redis has earlier ones or none, as after it was emptied.
-- KEYS: 1 tenants
-- ARGV: 1 the version of the entries  2... names and texts in turn
-- Answer: 1, or 0 when Redis has this version or a later one
if tonumber(redis.call('HGET', KEYS[1], '=version') or '0') >= tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], '=version', ARGV[1])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
