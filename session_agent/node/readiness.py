"""Waits until the namespaces of a new sandbox exist and its agent listens, or reports why the agent does not.

Owns reading one byte and one JSON line from an untrusted process.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os

from holdfast_wire.errors import HoldfastError

from session_agent.node.containers import Container
from session_agent.node.descriptors import until_readable

_MAX_LINE = 8192
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.ENFILE, errno.EMFILE, errno.EBUSY, errno.EINTR)
"""What the machine may have too little of just now; any other refusal of the kernel is the same tomorrow."""


async def prepared(container: Container, timeout_s: float) -> bool:
    """Wait until the child has created its namespaces: before that, /proc shows the zygote's. Returns False if it ended instead."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().sock_recv(container.control, 1) != b""
    except TimeoutError:
        raise HoldfastError("create_timeout", f"the sandbox's namespaces were not made within {timeout_s:g} s") from None
    except OSError:
        return False  # it reports the reason on its own channel


async def wait_ready(container: Container, timeout_s: float) -> None:
    """Wait until the agent serves.

    Raises HoldfastError(create_timeout, runtime_unavailable), and sandbox_failed if another attempt would fail too.
    """
    raw = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while b"\n" not in raw and len(raw) <= _MAX_LINE:
                await until_readable(container.ready)
                part = os.read(container.ready, 4096)
                if not part:
                    break
                raw += part
    except TimeoutError:
        raise HoldfastError("create_timeout", f"the agent did not serve within {timeout_s:g} s") from None
    try:
        answer = json.loads(raw) if raw else {}
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    if answer.get("ready") is True:
        return
    problem = str(answer.get("error") or "")[:500] or container.agent_log.tail() or "no reason given"
    number = answer.get("errno")
    if isinstance(number, int) and number not in _PASSING:
        raise HoldfastError("sandbox_failed", f"the sandbox did not start: {problem}", reason="start-failed")
    raise HoldfastError("runtime_unavailable", f"the sandbox did not start: {problem}")
