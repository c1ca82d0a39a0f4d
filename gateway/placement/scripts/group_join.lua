-- Add a sandbox to a group, before its record is written. A group that does not exist begins, without a lease.
-- KEYS: 1 group  2 members  3 groups  4 term
-- ARGV: 1 group key  2 owner  3 name  4 sandbox id  5 lease the caller holds ('' any)  6 ttl ms to begin with when it is rebuilt ('' none)
--       7 term ('' from a gateway)
-- Answer: {ok|lapsed, hash, number of members}
if fenced(KEYS[4], ARGV[7]) then return FENCED end
local f = redis.call('HMGET', KEYS[1], 'state', 'lease')
local rebuilt = ARGV[7] ~= ''
if not rebuilt then
  local empty = redis.call('ZCARD', KEYS[2]) == 0
  if f[1] == 'ended' and (ARGV[5] ~= '' or not empty) then return { 'lapsed', redis.call('HGETALL', KEYS[1]), 0 } end
  if f[1] == 'open' and ARGV[5] ~= '' and f[2] ~= '' and f[2] ~= ARGV[5] then return { 'lapsed', redis.call('HGETALL', KEYS[1]), 0 } end
  if f[1] == 'ended' then
    redis.call('DEL', KEYS[1])
    f = { false, false }
  end
end
if f[1] == 'ended' then
  redis.call('PERSIST', KEYS[1])
  redis.call('ZADD', KEYS[3], text(now_ms()), ARGV[1])
elseif not f[1] then
  local due = ''
  if ARGV[6] ~= '' then due = string.format('%.0f', now_ms() + tonumber(ARGV[6])) end
  redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'name', ARGV[3], 'state', 'open', 'lease', ARGV[5], 'ttl', ARGV[6], 'due', due)
  redis.call('ZADD', KEYS[3], due == '' and '+inf' or due, ARGV[1])
end
redis.call('ZADD', KEYS[2], text(now_ms()), ARGV[4])
return { 'ok', redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) }
