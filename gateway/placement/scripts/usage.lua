-- Sums over the sandboxes of an owner, or of all. One field per sandbox ("cpu memory since", in thousandths of a core, bytes
-- and ms) and the sums =n, =cpu, =memory: no id begins with '='.
-- KEYS: 1 usage  2 usages  3 term
-- ARGV: 1 verb (reserve, count, release)  2 owner  3 id  4 cpu  5 memory  6 most sandboxes  7 most cpu  8 most memory ('' no limit)
--       9 release: since when, as the caller saw it ('' whenever)  10 term ('' from a gateway)
-- Answer: {fresh|known|over|fenced, n, cpu, memory}; over: nothing was reserved, the sums are what they would have been
if fenced(KEYS[3], ARGV[10]) then return { 'fenced', 0, '0', '0' } end
local function sums()
  local f = redis.call('HMGET', KEYS[1], '=n', '=cpu', '=memory')
  return tonumber(f[1] or '0'), tonumber(f[2] or '0'), tonumber(f[3] or '0')
end
local function add(n, cpu, memory)
  redis.call('HINCRBY', KEYS[1], '=n', n)
  redis.call('HINCRBY', KEYS[1], '=cpu', string.format('%.0f', cpu))
  redis.call('HINCRBY', KEYS[1], '=memory', string.format('%.0f', memory))
end
local known = redis.call('HGET', KEYS[1], ARGV[3])
local n, cpu, memory = sums()
if ARGV[1] == 'release' then
  if not known then return { 'fresh', n, string.format('%.0f', cpu), string.format('%.0f', memory) } end
  local its_cpu, its_memory, since = string.match(known, '^(%d+) (%d+) (%d+)$')
  if ARGV[9] == '' or ARGV[9] == since then
    redis.call('HDEL', KEYS[1], ARGV[3])
    add(-1, -tonumber(its_cpu), -tonumber(its_memory))
    if n <= 1 then
      redis.call('DEL', KEYS[1])
      redis.call('SREM', KEYS[2], ARGV[2])
    end
  end
elseif not known then
  local sum_n, sum_cpu, sum_memory = n + 1, cpu + tonumber(ARGV[4]), memory + tonumber(ARGV[5])
  local function over(sum, most) return most ~= '' and sum > tonumber(most) end
  if ARGV[1] == 'reserve' and (over(sum_n, ARGV[6]) or over(sum_cpu, ARGV[7]) or over(sum_memory, ARGV[8])) then
    return { 'over', sum_n, string.format('%.0f', sum_cpu), string.format('%.0f', sum_memory) }
  end
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. text(now_ms()))
  add(1, tonumber(ARGV[4]), tonumber(ARGV[5]))
  redis.call('SADD', KEYS[2], ARGV[2])
end
n, cpu, memory = sums()
return { known and 'known' or 'fresh', n, string.format('%.0f', cpu), string.format('%.0f', memory) }
