"""A sandbox's limits, sizes and group as labels on its runtime object: a wiped placement store is rebuilt from them.

Owns the reserved labels, both ways. Called when a sandbox is created, and by the controller when it rebuilds a record.
"""

from __future__ import annotations

from typing import Any

from gateway.model.labels import RESERVED_LABEL, number_of
from gateway.model.records import SandboxSpec
from gateway.runtimes.base import SandboxStatus

_CLOCKS = ("lifetime_s", "idle_timeout_s", "heartbeat_timeout_s", "ready_timeout_s")
_OTHERS = ("cpu", "memory", "disk_bytes", "group_ttl_s")


def to_labels(spec: SandboxSpec) -> dict[str, str]:
    """The sandbox's own labels and the reserved ones."""
    ours: dict[str, Any] = {name: getattr(spec, name) for name in (*_CLOCKS, *_OTHERS)}
    ours["group"] = spec.group or None
    return spec.labels | {RESERVED_LABEL + name: str(value) for name, value in ours.items() if value is not None}


def to_spec(sandbox: SandboxStatus) -> SandboxSpec:
    """The specification, as far as the runtime has it. An unreadable label counts as missing."""
    ours = {name.removeprefix(RESERVED_LABEL): text for name, text in sandbox.labels.items() if name.startswith(RESERVED_LABEL)}
    clocks = {name: number_of(ours.get(name)) for name in _CLOCKS}
    disk = number_of(ours.get("disk_bytes"))
    return SandboxSpec(
        sandbox_id=sandbox.sandbox_id,
        owner=sandbox.owner,
        incarnation=sandbox.incarnation,
        image=sandbox.image,
        cpu=ours.get("cpu", f"{sandbox.cores:g}"),
        memory=ours.get("memory", str(sandbox.memory_bytes)),
        cores=sandbox.cores,
        memory_bytes=sandbox.memory_bytes,
        disk_bytes=None if disk is None else int(disk),
        labels={name: text for name, text in sandbox.labels.items() if not name.startswith(RESERVED_LABEL)},
        ready_timeout_s=clocks["ready_timeout_s"] or 3600.0,
        lifetime_s=clocks["lifetime_s"],
        idle_timeout_s=clocks["idle_timeout_s"],
        heartbeat_timeout_s=clocks["heartbeat_timeout_s"],
        egress=sandbox.egress,
        options=sandbox.options,
        group=ours.get("group", ""),
        group_ttl_s=number_of(ours.get("group_ttl_s")),
    )
