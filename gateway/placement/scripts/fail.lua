-- pending or ready → failed, or only from one of them, for this incarnation only; the record stays with its cause. A sandbox that was
-- announced to leave gets that cause: later reports of its end ("gone") carry less. This does not hold for an end by the workload itself.
-- KEYS: 1 record  2 tombstone  3 due  4 term  5 changes
-- ARGV: 1 id  2 incarnation  3 reason  4 fault  5 message  6 keep_failed  7 term ('' from a gateway)  8 the status it must have ('' either)
-- Answer: {record|tombstone|missing, hash}
if fenced(KEYS[4], ARGV[7]) then return FENCED end
local r = read(KEYS[1])
if r and r.inc == ARGV[2] and r.status ~= 'failed' and (ARGV[8] == '' or r.status == ARGV[8]) then
  local reason, fault, message = ARGV[3], ARGV[4], ARGV[5]
  if r.leaving_reason and fault == 'infrastructure' then
    reason, fault, message = r.leaving_reason, r.leaving_fault, r.leaving_message
  end
  save(KEYS[1], KEYS[3], ARGV[1], r, { status = 'failed', endpoint = '', ended = text(now_ms()), reason = reason, fault = fault,
    message = message }, tonumber(ARGV[6]))
  note_change(KEYS[5], ARGV[1])
end
return entry(r, KEYS[2])
