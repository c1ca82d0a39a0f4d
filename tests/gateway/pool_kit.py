"""One warm pool, its key and its pools file, for all tests of pools.

Owns the definitions only; each test module has its own fixtures.
"""

from __future__ import annotations

from typing import Any

from gateway.model.labels import KEY_LABEL
from gateway.model.records import SandboxSpec
from gateway.pools import Pool
from gateway.runtimes.base import SandboxStatus
from gateway.settings import ControllerSettings

POOL = Pool("warm", "host", 3, cores=1.0, memory_bytes=2**30, refill_per_s=100.0)
KEY = POOL.key
POOLS = {KEY: POOL}
QUICK = ControllerSettings(
    lease_ttl_s=2.0, lease_renew_s=0.05, expiry_interval_s=0.05, reconcile_interval_s=0.05, grace_s=0.2, refill_interval_s=0.02,
)  # fmt: skip


TEXT = """
pools:
  - {name: warm, image: host, cpu: 1, memory: 1Gi, size: 3, refill_per_s: 100}
  - {name: gpu, image: "python:3.12", cpu: 500m, memory: 2Gi, disk: 1Gi, size: 1, options: {gpu: 1}, egress: {mode: internet}}
"""


def spare(id_: str, age: float = 10.0, key: str = KEY, **more: Any) -> SandboxStatus:
    more.setdefault("created_at", 1000.0 - age)
    return SandboxStatus(SandboxSpec(id_, "", "i", "host", labels={KEY_LABEL: key}), "x", **more)
