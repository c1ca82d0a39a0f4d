-- Write the record of a sandbox that the runtime has, or that a gateway is creating, and that this store has lost.
-- KEYS: 1 record  2 tombstone  3 due  4 owned  5 term  6 changes  7 completeness marker  8 settling
--       9 set where the owner deleted the id while it was not known  10 set where the request that created it was cancelled
-- ARGV: 1 id  2 owner  3 incarnation  4 doc  5 endpoint  6 created ms  7 lifetime  8 idle  9 heartbeat  10 keep_failed
--       11 term ('' from a gateway, which may do this only until the records are complete)  12 status  13 ready timeout in ms
--       14 reason  15 fault  16 message (of a failed one)  17 memory or disk where it is paused
--       18 what identifies the request that created it ('' unknown)
-- Answer: {rebuilt|known|dead|deleted|complete}; dead: a tombstone shows that this incarnation has ended; deleted: its owner has deleted it
if fenced(KEYS[5], ARGV[11]) then return FENCED end
if ARGV[11] == '' and not incomplete(KEYS[7], KEYS[8]) then return { 'complete' } end
remove_unreadable(KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 1 then return { 'known' } end
if redis.call('HGET', KEYS[2], 'inc') == ARGV[3] then return { 'dead' } end
local now = now_ms()
local deleted_by = redis.call('GET', KEYS[9])
if not deleted_by and ARGV[18] ~= '' and redis.call('EXISTS', KEYS[10]) == 1 then deleted_by = '' end
if deleted_by then
  end_record(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], ARGV[1], { owner = ARGV[2], inc = ARGV[3] }, 'deleted', 'caller',
    'a client deleted the sandbox', ARGV[10], deleted_by)
  return { 'deleted' }
end
-- Whether its lifetime was changed is lost: it starts again, so that nothing ends earlier than promised. So does the time to become ready.
local life = number(ARGV[7])
local r = {
  doc = ARGV[4], owner = ARGV[2], inc = ARGV[3], fp = '', status = ARGV[12], endpoint = ARGV[5], created = ARGV[6], active = text(now),
  life = life and text(now - tonumber(ARGV[6]) + life) or '', idle = ARGV[8], hb = ARGV[9],
  paused = ARGV[17], paused_at = ARGV[17] ~= '' and text(now) or '', request = ARGV[18],
}
if r.status == 'ready' then
  r.ready = text(now)
elseif r.status == 'pending' then
  r.ready_by = text(now + tonumber(ARGV[13]))
else
  r.ended, r.reason, r.fault, r.message = text(now), ARGV[14], ARGV[15], ARGV[16]
end
redis.call('DEL', KEYS[2])
save(KEYS[1], KEYS[3], ARGV[1], r, r, tonumber(ARGV[10]))
redis.call('ZADD', KEYS[4], 0, ARGV[1])
note_change(KEYS[6], ARGV[1])
return { 'rebuilt' }
