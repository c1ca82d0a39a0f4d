-- The controller's operations on one spare of a pool. The three sets hold ids by the time they were added.
-- KEYS: 1 making  2 spares  3 taken  4 pools  5 term
-- ARGV: 1 verb  2 pool key  3 id  4 least ms since it was taken (claim)  5 term
--   plan    it is about to be created
--   offer   it is ready: it can be taken (not when it was already)
--   claim   it is about to be removed, and cannot be taken any more
--   abandon as claim, while it is being created: by no living controller, as far as the caller knows
--   withdraw it no longer exists
--   forget  it is completely removed
-- Answer: 1 done, 0 not applicable, -1 fenced
if fenced(KEYS[5], ARGV[5]) then return -1 end
local verb, id, now = ARGV[1], ARGV[3], now_ms()
local text = string.format('%.0f', now)
if verb == 'plan' then
  redis.call('ZADD', KEYS[1], text, id)
  redis.call('SADD', KEYS[4], ARGV[2])
elseif verb == 'offer' then
  redis.call('ZREM', KEYS[1], id)
  if redis.call('ZSCORE', KEYS[3], id) then return 0 end
  redis.call('ZADD', KEYS[2], 'NX', text, id)
  redis.call('SADD', KEYS[4], ARGV[2])
elseif verb == 'claim' or verb == 'abandon' then
  if verb == 'abandon' and not redis.call('ZSCORE', KEYS[1], id) then return 0 end
  local at = tonumber(redis.call('ZSCORE', KEYS[3], id) or '')
  if at and now - at < tonumber(ARGV[4]) then return 0 end
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZADD', KEYS[3], text, id)
  redis.call('SADD', KEYS[4], ARGV[2])
else
  redis.call('ZREM', KEYS[2], id)
  if verb == 'forget' then
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[3], id)
  end
  if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then redis.call('SREM', KEYS[4], ARGV[2]) end
end
return 1
