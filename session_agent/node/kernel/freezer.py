"""Stopping all processes of a sandbox at once, and continuing them, by the freezer of control groups v2.

Owns the wait until every process is stopped; all of them are in the lowest groups, because a group with groups below it is reported as
frozen too early. Frozen processes keep their memory, use no CPU time and do not notice it; a signal other than SIGKILL is delivered when
they continue. Called by sandboxes.py for snapshots and pauses.
"""

from __future__ import annotations

import errno
import os
import select
import time

from holdfast_wire.errors import HoldfastError

from session_agent.node.kernel.cgroups import SandboxCgroup
from session_agent.node.kernel.syscalls import write_file

_FREEZE_S = 10.0
"""A process that waits for a device in the kernel stops only when the device has answered."""
_POLL_S = 0.1


def available(cgroup: SandboxCgroup) -> bool:
    """Whether the processes of this sandbox can be frozen."""
    return _group(cgroup) is not None


def freeze(cgroup: SandboxCgroup) -> None:
    """Stop all processes; returns when they have stopped. Blocks. Raises HoldfastError(unsupported, runtime_unavailable)."""
    group = _require(cgroup)
    write_file(f"{group}/cgroup.freeze", "1")
    try:
        _wait_frozen(group)
    except BaseException:
        write_file(f"{group}/cgroup.freeze", "0")
        raise


def thaw(cgroup: SandboxCgroup) -> None:
    """Continue all processes. Does nothing for a sandbox that has ended."""
    group = _group(cgroup)
    if group is not None:
        try:
            write_file(f"{group}/cgroup.freeze", "0")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise


def _wait_frozen(group: str) -> None:
    deadline = time.monotonic() + _FREEZE_S
    events = os.open(f"{group}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        changed = select.poll()
        changed.register(events, select.POLLPRI)
        while b"frozen 1" not in os.pread(events, 4096, 0):
            if time.monotonic() > deadline:
                raise HoldfastError("runtime_unavailable", f"a process of the sandbox did not stop within {_FREEZE_S:g} s")
            changed.poll(_POLL_S * 1000)
    finally:
        os.close(events)


def _require(cgroup: SandboxCgroup) -> str:
    group = _group(cgroup)
    if group is None:
        hint = "it needs control groups v2 in which the node may create groups; `holdfast doctor` says whether it has them"
        raise HoldfastError("unsupported", "the processes of this sandbox cannot be stopped together", hint=hint)
    return group


def _group(cgroup: SandboxCgroup) -> str | None:
    """The sandbox's outer group in the hierarchy of v2, which contains agent and commands."""
    for hierarchy, path in zip(cgroup.hierarchies.limiting, cgroup.paths, strict=True):
        if hierarchy.v2 and os.path.exists(f"{path}/cgroup.freeze"):
            return path
    return None
