"""Names of every key in Redis, side by side.

Owns the layout: a sandbox's record, tombstone, idempotency key and its shard's indexes share one hash tag, so a step on one sandbox is
atomic on a Redis Cluster too. Used by ``store`` and its parts, and by the controller.
"""

from __future__ import annotations

import hashlib
import zlib

SHARDS = 64
"""Slots the records are spread over; a sandbox's keys are all in one of them."""


_TAGS = tuple(f"hf:{{s{shard:02d}}}" for shard in range(SHARDS))


def shard_of(sandbox_id: str) -> int:
    """The shard that has a sandbox's keys."""
    return zlib.crc32(sandbox_id.encode()) % SHARDS


def record(sandbox_id: str) -> str:
    """Hash: the sandbox."""
    return f"{_TAGS[shard_of(sandbox_id)]}:sandbox:{sandbox_id}"


def tombstone(sandbox_id: str) -> str:
    """Hash with an expiry: why the sandbox ended."""
    return f"{_TAGS[shard_of(sandbox_id)]}:tombstone:{sandbox_id}"


def idempotency(sandbox_id: str) -> str:
    """String with an expiry: the fingerprint of the request that created this id under an idempotency key."""
    return f"{_TAGS[shard_of(sandbox_id)]}:idempotency:{sandbox_id}"


def claimed_key(owner: str, idempotency_key: str) -> str:
    """String with an expiry: the fingerprint of a keyed request that chose its own sandbox id."""
    digest = hashlib.sha256(f"{owner}\0{idempotency_key}".encode()).hexdigest()
    return f"{_TAGS[shard_of(digest)]}:claim:{digest}"


def cancelled(sandbox_id: str, owner: str, request: str) -> str:
    """String with an expiry: the owner's request to create this id was cancelled; ``request`` is ``SandboxSpec.request``."""
    digest = hashlib.sha256(f"{sandbox_id}\0{owner}\0{request}".encode()).hexdigest()
    return f"{_TAGS[shard_of(sandbox_id)]}:cancelled:{digest}"


def deleted(sandbox_id: str, owner: str) -> str:
    """String with an expiry: which program of the owner deleted this id ('' unknown) when it was not known whether it existed."""
    digest = hashlib.sha256(f"{sandbox_id}\0{owner}".encode()).hexdigest()
    return f"{_TAGS[shard_of(sandbox_id)]}:deleted:{digest}"


def owned(shard: int, owner: str) -> str:
    """Sorted set, all scores 0: ids of one owner in one shard, in order of id."""
    return f"{_TAGS[shard]}:owned:{owner}"


def due(shard: int) -> str:
    """Sorted set by deadline in ms: every id of the shard (``+inf`` where nothing expires)."""
    return f"{_TAGS[shard]}:due"


def changes(shard: int) -> str:
    """Stream: the ids of the shard's latest thousand changes of records."""
    return f"{_TAGS[shard]}:changes"


def term(shard: int) -> str:
    """Number: the newest controller term that wrote in this shard."""
    return f"{_TAGS[shard]}:term"


def marker(shard: int) -> str:
    """String: marks this shard's records as complete; gone after a wipe."""
    return f"{_TAGS[shard]}:generation"


def settling(shard: int) -> str:
    """String with an expiry: the shard's records were rebuilt a moment ago, so that gateways may still add sandboxes in creation."""
    return f"{_TAGS[shard]}:settling"


def spares(pool: str) -> str:
    """Sorted set by ms of creation: the spares that a pool offers."""
    return f"{_TAGS[shard_of(pool)]}:spares:{pool}"


def group_key(owner: str, name: str) -> str:
    """A group's name in Redis: names are per owner."""
    return hashlib.sha256(f"{owner}\0{name}".encode()).hexdigest()[:32]


def group(key: str) -> str:
    """Hash: owner name state lease ttl due, and once it has ended reason message ended. Expires some time after its end."""
    return f"{_TAGS[shard_of(key)]}:group:{key}"


def members(key: str) -> str:
    """Sorted set by ms of joining: ids of the group's sandboxes, including some that are gone or were never created."""
    return f"{_TAGS[shard_of(key)]}:members:{key}"


def groups(shard: int) -> str:
    """Sorted set by deadline in ms: every group of the shard (``+inf`` without a lease; the past once it has ended)."""
    return f"{_TAGS[shard]}:groups"


def usage(owner: str) -> str:
    """Hash: the sums over the sandboxes of an owner ("" for all owners)."""
    return f"{_TAGS[shard_of(_digest(owner))]}:usage:{_digest(owner)}"


def usage_keys(owner: str) -> list[str]:
    """The usage, the set of owners of its shard that have one, and the shard's term."""
    shard = shard_of(_digest(owner))
    return [usage(owner), f"{_TAGS[shard]}:usages", term(shard)]


def all_usages() -> list[str]:
    """Every one of these sets."""
    return [f"{_TAGS[shard]}:usages" for shard in range(SHARDS)]


def _digest(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def recordings() -> str:
    """Sorted set by ms of the end of a replica's lease: the recordings in progress."""
    return "hf:{recordings}:due"


def recording_holders() -> str:
    """Hash: which replica makes which recording."""
    return "hf:{recordings}:holders"


def probe() -> str:
    """Written to find out whether writes work."""
    return "hf:probe"


def lease() -> str:
    """Hash with an expiry: who leads, and the term."""
    return "hf:{controller}:lease"


def last_term() -> str:
    """Number: the last term given out."""
    return "hf:{controller}:term"


def sign_in(digest: str) -> str:
    """String with an expiry: the digest of the key that a link to the page signs in; ``digest`` is that of the link's token."""
    return f"{_TAGS[shard_of(digest)]}:sign-in:{digest}"


def tenants() -> str:
    """Hash: every project and stored key by name, and their version (``=version``)."""
    return "hf:{tenants}:entries"


def rate(bucket: str) -> str:
    """Hash with an expiry: what is left of a rate, and since when; ``bucket`` names the subject and the limit."""
    return f"{_TAGS[shard_of(bucket)]}:rate:{bucket}"


def key_uses() -> str:
    """Hash: when each stored key was used last, in seconds since the epoch."""
    return "hf:{tenants}:uses"
