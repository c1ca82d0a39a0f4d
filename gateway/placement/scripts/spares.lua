-- What is known of a pool.
-- KEYS: 1 making  2 spares  3 taken
-- ARGV: none
-- Answer: {now, making, spares, taken}: ids and the times they were added, in ms
local answer = { string.format('%.0f', now_ms()) }
for i = 1, 3 do answer[i + 1] = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES') end
return answer
