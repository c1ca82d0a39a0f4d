-- End one sandbox if its time has really run out by now.
-- KEYS: 1 record  2 tombstone  3 due  4 owned  5 term  6 changes
-- ARGV: 1 id  2 keep_failed  3 tombstone ttl ms  4 term  5 '1' where its agent must be asked before it ends for being idle
-- Answer: {expired|kept|ask|later|missing, hash as it was, cause}; kept: failed but still recorded
if fenced(KEYS[5], ARGV[4]) then return FENCED end
remove_unreadable(KEYS[1])
local r = read(KEYS[1])
if not r then
  redis.call('ZREM', KEYS[3], ARGV[1])
  note_change(KEYS[6], ARGV[1])
  return { 'missing', {}, '' }
end
local keep = tonumber(ARGV[2])
local at, why = deadline(r, keep)
if not at or at > now_ms() then
  save(KEYS[1], KEYS[3], ARGV[1], r, {}, keep)
  return { 'later', {}, '' }
end
local was = pairs_of(r)
if why == 'idle' and ARGV[5] == '1' then return { 'ask', was, why } end
if why == 'ready-timeout' then
  save(KEYS[1], KEYS[3], ARGV[1], r, { status = 'failed', ended = text(now_ms()), reason = why, fault = 'infrastructure',
    message = 'the sandbox was not ready in time' }, keep)
  note_change(KEYS[6], ARGV[1])
  return { 'kept', was, why }
end
local messages = {
  ttl = "the sandbox's lifetime is over",
  idle = 'the sandbox was not used for longer than its idle timeout',
  heartbeat = 'no heartbeat of the sandbox came within its heartbeat timeout',
}
local reason, fault, message = why, 'caller', messages[why]
if why == 'failed' then reason, fault, message = r.reason, r.fault, r.message end
end_record(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], ARGV[1], r, reason, fault, message, ARGV[3])
return { 'expired', was, reason }
