-- The ids whose records have changed since a number was the highest.
-- KEYS: 1 changes
-- ARGV: 1 the number, '' where none is known
-- Answer: {the highest number, 1 where the ids are complete, id...}
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local highest, since = tonumber(last[2] or '0'), tonumber(ARGV[1])
if since == highest then return { highest, 1 } end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
-- Older changes than the first may have been dropped; a number above the highest is of a history that was lost.
if not since or since > highest or tonumber(first[2]) > since + 1 then return { highest, 0 } end
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf')
return { highest, 1, unpack(ids) }
