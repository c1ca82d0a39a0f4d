-- What is known about an id.
-- KEYS: 1 record  2 tombstone
-- ARGV: none
-- Answer: {record|tombstone|missing, hash}
return entry(read(KEYS[1]), KEYS[2])
