-- Reserve a sandbox id, once.
-- KEYS: 1 record  2 tombstone  3 idempotency key  4 due  5 owned  6 completeness marker  7 changes
--       8 set where the request was cancelled  9 set where the owner deleted the id while it was not known
-- ARGV: 1 id  2 owner  3 incarnation  4 fingerprint  5 doc  6 ready timeout  7 lifetime  8 idle  9 heartbeat
--       10 idempotency ttl ('' where its key is not this id's)  11 keep_failed   (durations in ms)
--       12 1: the id may have been used before, so it is unknown while the marker is gone  13 1: the request had a key
--       14 identifies the request  15 1: only this very request may find an existing record
--       16 1: its creation waits in a queue
-- Answer: {fresh|record|tombstone|conflict|cancelled|taken|in use|forgotten, hash}
local keyed = ARGV[10] ~= ''
local cancelled, prior, marker = unpack(redis.call('MGET', KEYS[8], KEYS[3], KEYS[6]))
if cancelled then return { 'cancelled', {} } end
local r = read(KEYS[1])
if keyed and prior then
  if prior ~= ARGV[4] then return { 'conflict', {} } end
  if not r and redis.call('EXISTS', KEYS[2]) == 1 then return entry(nil, KEYS[2]) end
end
if r then
  local same = r.fp == ARGV[4] or (r.fp == '' and ARGV[13] == '1') -- a record that was rebuilt knows its request no more
  if r.owner ~= ARGV[2] or not same then return { 'taken', {} } end
  if ARGV[15] == '1' and r.request ~= ARGV[14] then return { 'in use', {} } end
  return entry(r, KEYS[2])
end
if ARGV[12] == '1' and not marker and redis.call('EXISTS', KEYS[2]) == 0 then return { 'forgotten', {} } end
local now = now_ms()
r = {
  doc = ARGV[5], owner = ARGV[2], inc = ARGV[3], fp = ARGV[4], status = 'pending', created = text(now), active = text(now),
  ready_by = text(now + tonumber(ARGV[6])), life = ARGV[7], idle = ARGV[8], hb = ARGV[9], request = ARGV[14],
  begun = ARGV[16] == '1' and '' or text(now),
}
save(KEYS[1], KEYS[4], ARGV[1], r, r, tonumber(ARGV[11]))
redis.call('DEL', KEYS[2], KEYS[9]) -- after the first write that a full store refuses: a step that has written is let through
redis.call('ZADD', KEYS[5], 0, ARGV[1])
note_change(KEYS[7], ARGV[1])
if keyed then redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[10]) end
return { 'fresh', pairs_of(r) }
