-- Remove a sandbox that is gone. A group that has ended, or never had a lease, is removed with its last one.
-- KEYS: 1 group  2 members  3 groups  4 term
-- ARGV: 1 group key  2 sandbox id  3 when it joined, as the caller saw it: one that joined again stays  4 remembered for ms  5 term
-- Answer: number of members left
if fenced(KEYS[4], ARGV[5]) then return FENCED end
local at = redis.call('ZSCORE', KEYS[2], ARGV[2])
if at and tonumber(at) == tonumber(ARGV[3]) then redis.call('ZREM', KEYS[2], ARGV[2]) end
local left = redis.call('ZCARD', KEYS[2])
if left == 0 then
  local f = redis.call('HMGET', KEYS[1], 'state', 'due')
  if f[1] == 'ended' then
    redis.call('ZREM', KEYS[3], ARGV[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  elseif not f[1] or f[2] == '' then
    redis.call('ZREM', KEYS[3], ARGV[1])
    redis.call('DEL', KEYS[1])
  end
end
return left
