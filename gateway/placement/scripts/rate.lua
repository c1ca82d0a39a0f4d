-- Take from a bucket that fills steadily.
-- KEYS: 1 bucket (hash: left, at)
-- ARGV: 1 how much it gains in a minute  2 how much it holds  3 the least to take  4 the most to take
--       5 1: take all of it, also what is not there: it was used already
-- Answer: {what was taken, ms until the least (or anything, with 5) is there, what is left}
local rate, holds, least, most = tonumber(ARGV[1]) / 60000, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local left, at = unpack(redis.call('HMGET', KEYS[1], 'left', 'at'))
left, at = tonumber(left or ARGV[2]), tonumber(at or now)
left = math.min(holds, left + math.max(now - at, 0) * rate)
local taken, wait = 0, 0
if ARGV[5] == '1' then
  left, taken = left - most, most
  if left <= 0 then wait = math.ceil((1 - left) / rate) end
elseif left >= least then
  taken = math.min(most, left)
  left = left - taken
else
  wait = math.ceil((least - left) / rate)
end
redis.call('HSET', KEYS[1], 'left', string.format('%.6f', left), 'at', text(now))
redis.call('PEXPIRE', KEYS[1], text(math.ceil(math.max(holds - left, 1) / rate) + 1000))
return { string.format('%.6f', taken), wait, string.format('%.6f', left) }
