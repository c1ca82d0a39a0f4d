-- Offer spares of a pool, or withdraw them. Offered ids are kept for a day: the controller repeats its offers.
-- KEYS: 1 spares  2 term
-- ARGV: 1 term ('' from a gateway)  2 created ms ('' withdraws)  3 id, and so on in pairs
-- Answer: 1
if fenced(KEYS[2], ARGV[1]) then return FENCED end
for i = 2, #ARGV, 2 do
  if ARGV[i] == '' then redis.call('ZREM', KEYS[1], ARGV[i + 1])
  else redis.call('ZADD', KEYS[1], 'NX', ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], 86400)
return 1
