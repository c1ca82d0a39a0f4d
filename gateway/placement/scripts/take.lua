-- Take the oldest spare, or return one that was not used.
-- KEYS: 1 spares  2 taken
-- ARGV: 1 id to return ('' takes)
-- Answer: the id, or '' when there is none
local now = string.format('%.0f', now_ms())
if ARGV[1] ~= '' then
  if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then redis.call('ZADD', KEYS[1], now, ARGV[1]) end
  return ARGV[1]
end
local popped = redis.call('ZPOPMIN', KEYS[1])
if not popped[1] then return '' end
redis.call('ZADD', KEYS[2], now, popped[1])
return popped[1]
