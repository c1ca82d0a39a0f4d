-- Sums over the sandboxes of an owner, or of all. One field per sandbox ("cpu memory since", in thousandths of a core, bytes
-- and ms) and the sums =n, =cpu, =memory: no id begins with '='.
-- KEYS: 1 usage  2 usages  3 term
-- ARGV: 1 verb (reserve, count, release)  2 owner  3 id  4 cpu  5 memory  6 most sandboxes  7 most cpu  8 most memory ('' no limit)
--       9 release: since when, as the caller saw it ('' whenever)  10 term ('' from a gateway)
-- Answer: {fresh|known|over, n, cpu, memory}; over: nothing was reserved, the sums are what they would have been
if fenced(KEYS[3], ARGV[10]) then return FENCED end
local known, n, cpu, memory = unpack(redis.call('HMGET', KEYS[1], ARGV[3], '=n', '=cpu', '=memory'))
n, cpu, memory = tonumber(n or '0'), tonumber(cpu or '0'), tonumber(memory or '0')
local function answer(outcome) return { outcome, n, text(cpu), text(memory) } end
if ARGV[1] == 'release' then
  if not known then return answer('fresh') end
  local its_cpu, its_memory, since = string.match(known, '^(%d+) (%d+) (%d+)$')
  if ARGV[9] == '' or ARGV[9] == since then
    n, cpu, memory = n - 1, cpu - tonumber(its_cpu), memory - tonumber(its_memory)
    if n > 0 then
      redis.call('HDEL', KEYS[1], ARGV[3])
      redis.call('HSET', KEYS[1], '=n', n, '=cpu', text(cpu), '=memory', text(memory))
    else
      redis.call('DEL', KEYS[1])
      redis.call('SREM', KEYS[2], ARGV[2])
    end
  end
elseif not known then
  n, cpu, memory = n + 1, cpu + tonumber(ARGV[4]), memory + tonumber(ARGV[5])
  local function over(sum, most) return most ~= '' and sum > tonumber(most) end
  if ARGV[1] == 'reserve' and (over(n, ARGV[6]) or over(cpu, ARGV[7]) or over(memory, ARGV[8])) then return answer('over') end
  local counted = ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. text(now_ms())
  redis.call('HSET', KEYS[1], ARGV[3], counted, '=n', n, '=cpu', text(cpu), '=memory', text(memory))
  redis.call('SADD', KEYS[2], ARGV[2])
end
return answer(known and 'known' or 'fresh')
