"""Refusal of sizes that no machine has: such a sandbox would never become ready.

Owns the comparison. Only requested sizes are checked: the defaults are the service's own. Called before anything is counted.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError

from gateway.model.records import SandboxSpec
from gateway.runtimes.base import Runtime

_GIB = 2**30


async def check_sizes(runtime: Runtime, spec: SandboxSpec, *, cpu: bool, memory: bool) -> None:
    """Raises ``invalid_quantity``. ``cpu`` and ``memory``: whether they were requested."""
    if not cpu and not memory:
        return
    try:
        largest = await runtime.largest()
    except HoldfastError:
        return  # the runtime is down, which the create will report
    if largest is None:
        return
    cores, size = largest
    if cpu and spec.cores > cores:
        raise _too_much(f"cpu={spec.cpu} is more than any machine here has: {cores:g} cores")
    if memory and spec.memory_bytes > size:
        raise _too_much(f"memory={spec.memory} is more than any machine here has: {size / _GIB:.1f}Gi")


def _too_much(message: str) -> HoldfastError:
    return HoldfastError("invalid_quantity", message, hint="request less, or leave it out; GET /resources shows what there is")
