-- Record a heartbeat or use; never creates a key.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner ('' any)  3 beat ('1' for a heartbeat)  4 keep_failed  5 how many ms ago it was used ('' not at all)
-- Answer: {record|tombstone|missing, hash}
local r = read(KEYS[1])
if r and r.owner and (ARGV[2] == '' or r.owner == ARGV[2]) then
  local now, changed = now_ms(), {}
  if ARGV[3] == '1' then changed.beat = text(now) end
  if ARGV[5] ~= '' then changed.active = text(math.max(now - tonumber(ARGV[5]), number(r.active) or 0)) end
  save(KEYS[1], KEYS[3], ARGV[1], r, changed, tonumber(ARGV[4]))
end
return entry(r, KEYS[2])
