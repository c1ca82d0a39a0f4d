-- The spares that a pool offers.
-- KEYS: 1 spares  2 completeness marker
-- Answer: {1 where the set is complete, {id, created ms, ...}}
return { redis.call('EXISTS', KEYS[2]), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') }
