-- Change labels and limits of a sandbox; nothing changes for another owner, nor for one that has failed.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner  3 keep_failed  4 the version that it must have ('': any)  5 labels to set, null to remove (JSON, '': none)
--       6 ms from now until its end ('': unchanged)  7 ms by which its end is extended ('': none)
--       8 idle limit in ms ('': unchanged, 0: none)  9 heartbeat limit in ms (the same)  10 the most labels
-- Answer: {record|tombstone|missing, hash, ok|version|labels}; other than ok: nothing has changed, and why
local r = read(KEYS[1])
local outcome = 'ok'
if r and r.owner == ARGV[2] and r.status ~= 'failed' then
  local changed = { changed = '1' }
  if ARGV[5] ~= '' then
    local labels = cjson.decode(r.labels or r.doc)
    if not r.labels then labels = labels.labels or {} end
    for name, value in pairs(cjson.decode(ARGV[5])) do
      if value == cjson.null then labels[name] = nil else labels[name] = value end
    end
    local count = 0
    for _ in pairs(labels) do count = count + 1 end
    if count > tonumber(ARGV[10]) then outcome = 'labels' end
    changed.labels = cjson.encode(labels)
  end
  if ARGV[6] ~= '' then
    changed.life = text(now_ms() - number(r.created) + tonumber(ARGV[6]))
  elseif ARGV[7] ~= '' and number(r.life) then
    changed.life = text(number(r.life) + tonumber(ARGV[7]))
  end
  -- A limit that is set counts from now on.
  if ARGV[8] ~= '' then
    changed.idle = ARGV[8] ~= '0' and ARGV[8] or ''
    if r.status == 'ready' then changed.active = text(math.max(number(r.active) or 0, now_ms())) end
  end
  if ARGV[9] ~= '' then
    changed.hb = ARGV[9] ~= '0' and ARGV[9] or ''
    if r.status == 'ready' then changed.beat = text(now_ms()) end
  end
  if ARGV[4] ~= '' and ARGV[4] ~= version(r) then outcome = 'version' end
  if outcome == 'ok' then save(KEYS[1], KEYS[3], ARGV[1], r, changed, tonumber(ARGV[3])) end
end
local found = entry(r, KEYS[2])
found[3] = outcome
return found
