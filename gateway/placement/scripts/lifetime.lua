-- Change when a sandbox ends at the latest; nothing changes for another owner, nor for one that has failed.
-- KEYS: 1 record  2 tombstone  3 due
-- ARGV: 1 id  2 owner  3 ms from now on ('' where it is extended)  4 ms by which its end is extended  5 keep_failed
-- Answer: {record|tombstone|missing, hash}
local r = read(KEYS[1])
if r and r.owner == ARGV[2] and r.status ~= 'failed' then
  local life = number(r.life)
  if ARGV[3] ~= '' then
    life = now_ms() - number(r.created) + tonumber(ARGV[3])
  elseif life then
    life = life + tonumber(ARGV[4])
  end
  save(KEYS[1], KEYS[3], ARGV[1], r, { life = life and text(life) or '' }, tonumber(ARGV[5]))
end
return entry(r, KEYS[2])
