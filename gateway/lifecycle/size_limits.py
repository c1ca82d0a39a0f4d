"""Whether what a sandbox asks for can be had at all: more than the largest machine has never comes, however long one waits.

Owns the comparison and the words. Only what was asked for is judged: the defaults are the service's own. Called before anything is counted.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError

from gateway.model.records import SandboxSpec
from gateway.service import Gateway

_GIB = 2**30


async def check_sizes(gateway: Gateway, spec: SandboxSpec, *, cpu: bool, memory: bool) -> None:
    """Raises ``invalid_quantity``. ``cpu`` and ``memory``: whether they were asked for."""
    if not cpu and not memory:
        return
    try:
        largest = await gateway.runtime.largest()
    except HoldfastError:
        return  # the runtime is away, which making it will say better
    if largest is None:
        return
    cores, size = largest
    if cpu and spec.cores > cores:
        raise _too_much(f"cpu={spec.cpu} is more than any machine here has: {cores:g} cores")
    if memory and spec.memory_bytes > size:
        raise _too_much(f"memory={spec.memory} is more than any machine here has: {size / _GIB:.1f}Gi")


def _too_much(message: str) -> HoldfastError:
    return HoldfastError("invalid_quantity", message, hint="ask for less, or leave it out; GET /resources says what there is")
