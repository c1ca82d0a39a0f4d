-- Release the lease, if the holder has it.
-- KEYS: 1 lease
-- ARGV: 1 holder
-- Answer: 1 when it was released
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
