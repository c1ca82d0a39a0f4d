-- Write the record of a sandbox the runtime has and this store does not know.
-- KEYS: 1 record  2 tombstone  3 due  4 owned  5 term  6 changes
-- ARGV: 1 id  2 owner  3 incarnation  4 doc  5 endpoint  6 created ms  7 lifetime  8 idle  9 heartbeat  10 keep_failed  11 term
-- Answer: {rebuilt|known|dead}; dead: a tombstone shows that this incarnation has ended
if fenced(KEYS[5], ARGV[11]) then return FENCED end
remove_unreadable(KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 1 then return { 'known' } end
if redis.call('HGET', KEYS[2], 'inc') == ARGV[3] then return { 'dead' } end
local now = text(now_ms())
-- Whether its lifetime was changed is lost: it starts again, so that nothing ends earlier than promised.
local life = number(ARGV[7])
local r = {
  doc = ARGV[4], owner = ARGV[2], inc = ARGV[3], fp = '', status = 'ready', endpoint = ARGV[5], created = ARGV[6], ready = now,
  life = life and text(now_ms() - tonumber(ARGV[6]) + life) or '', idle = ARGV[8], hb = ARGV[9], active = now,
}
redis.call('DEL', KEYS[2])
save(KEYS[1], KEYS[3], ARGV[1], r, r, tonumber(ARGV[10]))
redis.call('ZADD', KEYS[4], 0, ARGV[1])
note_change(KEYS[6], ARGV[1])
return { 'rebuilt' }
