-- Remove a record and leave a tombstone. One that had failed keeps that cause, for later requests.
-- KEYS: 1 record  2 tombstone  3 idempotency key  4 due  5 owned  6 term  7 changes  8 set where the request of a create was cancelled
--       9 completeness marker  10 settling  11 set where the owner deleted the id while it was not known
-- ARGV: 1 id  2 owner ('' any)  3 incarnation ('' any)  4 reason  5 fault  6 message  7 tombstone ttl ms  8 forget (1: no tombstone)  9 term
--       10 identifies the request of a create that its client has cancelled ('' none): only what that request created is removed, and it
--       is refused if it arrives, or arrives again, after this
--       11 the program that deletes it ('' unknown)
--       12 for how many ms KEYS[11] is kept
-- Answer: {deleted|record|tombstone|missing, hash}; record: it has another owner, incarnation or request, and stays
if fenced(KEYS[6], ARGV[9]) then return FENCED end
if ARGV[10] ~= '' then
  redis.call('DEL', KEYS[8]) -- a step that has written is let through by a full store
  redis.call('SET', KEYS[8], 1, 'PX', ARGV[7])
end
local r = read(KEYS[1])
if not r then
  -- Carried out once the record is written again.
  if ARGV[10] == '' and ARGV[9] == '' and incomplete(KEYS[9], KEYS[10]) and redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('SET', KEYS[11], ARGV[11], 'PX', ARGV[12])
  end
  return entry(nil, KEYS[2])
end
-- A record that was rebuilt from what an older gateway created has no request: it may be any request's, and stays.
local created = ARGV[10] == '' or r.request == ARGV[10]
if (ARGV[2] ~= '' and ARGV[2] ~= r.owner) or (ARGV[3] ~= '' and ARGV[3] ~= r.inc) or not created then return entry(r, KEYS[2]) end
local reason, fault, message, by = ARGV[4], ARGV[5], ARGV[6], ARGV[11]
if r.status == 'failed' and (r.reason or '') ~= '' then reason, fault, message, by = r.reason, r.fault, r.message, '' end
end_record(KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[7], ARGV[1], r, reason, fault, message, ARGV[7], by)
if ARGV[8] == '1' then redis.call('DEL', KEYS[2], KEYS[3]) end
return { 'deleted', pairs_of(r) }
