-- Refuse every later write of an older term in this shard; optionally set the completeness marker.
-- KEYS: 1 term  2 completeness marker  3 settling
-- ARGV: 1 term  2 marker ('' leaves it)  3 for how many ms gateways may add sandboxes in creation (0: there are none)
-- Answer: 1
if fenced(KEYS[1], ARGV[1]) then return FENCED end
if ARGV[2] ~= '' then
  if ARGV[3] ~= '0' then redis.call('SET', KEYS[3], 1, 'PX', ARGV[3]) end
  redis.call('SET', KEYS[2], ARGV[2])
end
return 1
