-- Change when a sandbox ends at the latest; nothing changes for another owner, nor for one that has failed.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner  3 ms from now on ('' where it is extended)  4 ms by which its end is extended  5 keep_failed
-- Answer: {record|tombstone|missing, hash}
local f = redis.call('HMGET', KEYS[1], 'owner', 'created', 'life', 'status')
if f[1] == ARGV[2] and f[4] ~= 'failed' then
  local life = number(f[3])
  if ARGV[3] ~= '' then
    life = now_ms() - number(f[2]) + tonumber(ARGV[3])
  elseif life then
    life = life + tonumber(ARGV[4])
  end
  if life then redis.call('HSET', KEYS[1], 'life', string.format('%.0f', life)) end
  schedule(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[5]))
end
return entry(KEYS[1], KEYS[2])
