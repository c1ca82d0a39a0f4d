-- Record a heartbeat or use; never creates a key.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner ('' any)  3 beat ('1' for a heartbeat)  4 keep_failed  5 how many ms ago it was used ('' not at all)
-- Answer: {record|tombstone|missing, hash}
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and (ARGV[2] == '' or owner == ARGV[2]) then
  local now = now_ms()
  if ARGV[3] == '1' then redis.call('HSET', KEYS[1], 'beat', string.format('%.0f', now)) end
  if ARGV[5] ~= '' then
    local used = math.max(now - tonumber(ARGV[5]), number(redis.call('HGET', KEYS[1], 'active')) or 0)
    redis.call('HSET', KEYS[1], 'active', string.format('%.0f', used))
  end
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[4]))
end
return entry(KEYS[1], KEYS[2])
