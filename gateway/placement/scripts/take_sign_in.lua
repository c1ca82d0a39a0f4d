-- Take what a link to the page signs in, so that the link works once.
-- KEYS: 1 sign-in
-- Answer: the digest of the key, '' when there is no such link or it was used
local found = redis.call('GET', KEYS[1])
if not found then return '' end
redis.call('DEL', KEYS[1])
return found
