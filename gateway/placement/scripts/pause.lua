-- Record that a sandbox is paused, or that it continues; nothing changes for another incarnation, nor for one that has failed.
-- None of its limits runs out while it is paused, and the time does not count towards its lifetime.
-- KEYS: 1 record  2 tombstone  3 due  4 term  5 changes
-- ARGV: 1 id  2 incarnation  3 memory or disk, '' where it continues  4 keep_failed
-- Answer: {record|tombstone|missing, hash}
local r = read(KEYS[1])
if r and r.inc == ARGV[2] and r.status ~= 'failed' then
  local now = now_ms()
  local changed = { paused = ARGV[3] }
  if ARGV[3] == '' then
    local since = number(r.paused_at)
    local life = number(r.life)
    if since and life then changed.life = text(life + now - since) end
    changed.paused_at, changed.active = '', text(now)
    if r.beat and r.beat ~= '' then changed.beat = text(now) end
  elseif not r.paused or r.paused == '' then
    changed.paused_at = text(now)
  end
  save(KEYS[1], KEYS[3], ARGV[1], r, changed, tonumber(ARGV[4]))
  note_change(KEYS[5], ARGV[1])
end
return entry(r, KEYS[2])
