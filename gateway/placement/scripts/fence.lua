-- Refuse every later write of an older term in this shard; optionally set the completeness marker.
-- KEYS: 1 term  2 completeness marker
-- ARGV: 1 term  2 marker ('' leaves it)
-- Answer: 1
if fenced(KEYS[1], ARGV[1]) then return FENCED end
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2]) end
return 1
