-- pending → ready, for this incarnation only; answers the entry as it stands.
-- KEYS: 1 record  2 tombstone  3 due  4 term  5 changes
-- ARGV: 1 id  2 incarnation  3 endpoint  4 keep_failed  5 term ('' from a gateway)
-- Answer: {record|tombstone|missing, hash}
if fenced(KEYS[4], ARGV[5]) then return FENCED end
local r = read(KEYS[1])
if r and r.inc == ARGV[2] and r.status == 'pending' then
  local now = text(now_ms())
  save(KEYS[1], KEYS[3], ARGV[1], r, { status = 'ready', endpoint = ARGV[3], ready = now, active = now }, tonumber(ARGV[4]))
  note_change(KEYS[5], ARGV[1])
end
return entry(r, KEYS[2])
