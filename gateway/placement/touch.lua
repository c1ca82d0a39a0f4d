-- Note a heartbeat or activity; never creates a key.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner ('' any)  3 field (beat or active)  4 keep_failed  5 holder ('' none)  6 hold (ms its use goes on; 0 ends it)
-- Answer: {record|tombstone|missing, hash}
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and (ARGV[2] == '' or owner == ARGV[2]) then
  local now = now_ms()
  redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f', now), 'active', string.format('%.0f', now))
  if ARGV[5] ~= '' then hold(KEYS[1], ARGV[5], now, tonumber(ARGV[6])) end
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[4]))
end
return entry(KEYS[1], KEYS[2])
