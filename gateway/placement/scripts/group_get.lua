-- What is known of a group.
-- KEYS: 1 group  2 members
-- ARGV: 1 how many member ids at most
-- Answer: {hash, members and when they joined, number of members}
return { redis.call('HGETALL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES'), redis.call('ZCARD', KEYS[2]) }
