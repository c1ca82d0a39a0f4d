"""Warm pools: which spare sandboxes a deployment keeps ready, and which creates they fit; which images every node pre-pulls.

Owns the definitions and their file. A spare fits a request of exactly the same image, size, disk, egress and options: their hash is the
pool's key, so a changed definition is another pool, and spares of the old one are never used for it. Used by ``lifecycle.creation`` and by
the controller, which refills the pools.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes, parse_cpu

from gateway.model.option_fields import network_map, options_map, read_network, read_options
from gateway.model.options import Egress, Options
from gateway.model.records import SandboxSpec

log = logging.getLogger("gateway")

PREFIX = "pool-"
"""Prefix of every spare's id."""
_FIELDS = {"name", "image", "cpu", "memory", "disk", "options", "egress", "size", "refill_per_s", "max_age_s"}
_MOST_SPARES = 10_000
_MOST_IMAGES = 32
"""Limit of images to pull in advance: each takes a pod, with its address, on every node."""
_NAME_CHARACTERS = 512


class PoolsError(ValueError):
    """The pools file cannot be used; the message names the pool (the first is 1) or the field."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool. ``refill_per_s`` bounds how fast spares are created, ``max_age_s`` is when one is replaced."""

    name: str
    image: str
    size: int
    cores: float = 4.0
    memory_bytes: int = 16 * 1024**3
    disk_bytes: int | None = None
    egress: Egress = field(default_factory=Egress)
    options: Options = field(default_factory=Options)
    refill_per_s: float = 2.0
    max_age_s: float = 6 * 3600.0

    @property
    def key(self) -> str:
        return key_of(self)


def key_of(what: Pool | SandboxSpec) -> str:
    """Hash of everything a spare must have in common with the sandbox it becomes."""
    parts = [what.image, what.cores, what.memory_bytes, what.disk_bytes, network_map(what.egress), options_map(what.options)]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:20]


def read_pools(text: str | bytes) -> dict[str, Pool]:
    """Pools by key from YAML or JSON: a list, or ``{pools: [...], prepull: [...]}``. Raises ``PoolsError``."""
    body = _parsed(text).get("pools")
    if not isinstance(body, list):
        raise PoolsError("there is no list of pools")
    pools: dict[str, Pool] = {}
    for number, entry in enumerate(body, 1):
        try:
            pool = _pool(entry)
        except (HoldfastError, OverflowError, TypeError, ValueError) as error:
            raise PoolsError(f"pool {number}: {error}") from None
        if pool.key in pools or pool.name in (other.name for other in pools.values()):
            raise PoolsError(f"pool {number}: another pool has the name {pool.name!r}, or the same image, size and options")
        pools[pool.key] = pool
    return pools


def read_prepull(text: str | bytes) -> tuple[str, ...]:
    """The images that every node pulls in advance. Raises ``PoolsError``."""
    names = _parsed(text).get("prepull") or []
    if not isinstance(names, list) or len(names) > _MOST_IMAGES:
        raise PoolsError(f"prepull must be a list of at most {_MOST_IMAGES} images")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS or any(c <= " " or c > "~" for c in name):
            raise PoolsError(f"prepull: {name!r} is not the name of an image")
    return tuple(dict.fromkeys(names))


def _options(body: dict[str, Any]) -> Options:
    options = read_options(body)
    if options.entrypoint:
        raise ValueError("entrypoint cannot be set in a pool: a spare starts before the request that names a program")
    return options


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PoolsError(f"the file is neither YAML nor JSON: {error}") from None
    if isinstance(body, list):
        return {"pools": body}
    if not isinstance(body, dict) or not body.keys() <= {"pools", "prepull"}:
        raise PoolsError("the file must hold a list of pools, or a map with pools and prepull")
    return {"pools": [], **body} if "prepull" in body else body


def _pool(entry: Any) -> Pool:
    if not isinstance(entry, dict):
        raise ValueError("a pool must be a map")
    if unknown := sorted(str(field) for field in entry.keys() - _FIELDS):
        raise ValueError(f"there is no field {', '.join(unknown)}; a pool has {', '.join(sorted(_FIELDS))}")
    if missing := [field for field in ("name", "image", "size") if field not in entry]:
        raise ValueError(f"{', '.join(missing)} is missing")
    name, size = str(entry["name"]), int(entry["size"])
    if not name or not name.isascii() or not name.replace("-", "").isalnum() or len(name) > 63:
        raise ValueError("name must be letters, digits and '-', at most 63")
    if not 0 <= size <= _MOST_SPARES:
        raise ValueError(f"size must be a number from 0 to {_MOST_SPARES}")
    refill_per_s, max_age_s = float(entry.get("refill_per_s", 2.0)), float(entry.get("max_age_s", 6 * 3600.0))
    if not refill_per_s > 0 or not max_age_s > 0:
        raise ValueError("refill_per_s and max_age_s must be above 0")
    return Pool(
        name=name,
        image=str(entry["image"]),
        size=size,
        cores=parse_cpu(entry.get("cpu", 4)),
        memory_bytes=parse_bytes(entry.get("memory", "16Gi")),
        disk_bytes=None if entry.get("disk") is None else parse_bytes(entry["disk"], "disk"),
        egress=read_network(entry.get("egress")),
        options=_options(entry.get("options") or {}),
        refill_per_s=refill_per_s,
        max_age_s=max_age_s,
    )


class PoolsFile:
    """The current pools of the file. An invalid file leaves the previous ones."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._pools: dict[str, Pool] = {}
        self._prepull: tuple[str, ...] = ()
        self._seen: tuple[int, int] | None = None

    def read(self) -> Mapping[str, Pool]:
        """Cheap where nothing changed: one ``stat``."""
        if self._path is None:
            return self._pools
        try:
            stat = self._path.stat()
            if (seen := (stat.st_mtime_ns, stat.st_ino)) != self._seen:
                self._seen = seen
                text = self._path.read_bytes()
                self._pools, self._prepull = read_pools(text), read_prepull(text)
                log.info("pools: %s", ", ".join(f"{pool.name}×{pool.size}" for pool in self._pools.values()) or "none")
        except (OSError, PoolsError) as error:
            if self._seen != (0, 0):
                log.error("the pools file cannot be used, so the previous pools stay in force: %s", error)
            if isinstance(error, OSError):
                self._seen = (0, 0)
        return self._pools

    def prepull(self) -> tuple[str, ...]:
        """The images to pull in advance. As cheap as ``read``."""
        self.read()
        return self._prepull
