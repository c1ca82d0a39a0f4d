-- Note a heartbeat or activity; never creates a key.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner ('' any)  3 field (beat or active)  4 hold (ms the use goes on)  5 keep_failed
-- Answer: {record|tombstone|missing, hash}
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and (ARGV[2] == '' or owner == ARGV[2]) then
  local now = now_ms()
  local moment = now + tonumber(ARGV[4])
  if moment > (number(redis.call('HGET', KEYS[1], ARGV[3])) or 0) then
    redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f', moment))
  end
  if ARGV[3] == 'beat' and now > (number(redis.call('HGET', KEYS[1], 'active')) or 0) then
    redis.call('HSET', KEYS[1], 'active', string.format('%.0f', now))
  end
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[5]))
end
return entry(KEYS[1], KEYS[2])
