"""Whether the failure of a sandbox to start is permanent or temporary."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.readiness import wait_ready


@pytest.mark.parametrize(
    ("report", "code", "message"),
    [
        ({"error": "file tree: mount overlay on root", "errno": errno.ELOOP}, "sandbox_failed", "file tree: mount overlay on root"),
        ({"error": "file tree: mount overlay on root", "errno": errno.ENOMEM}, "runtime_unavailable", "file tree: mount overlay on root"),
        ({"error": "agent: no such module", "errno": None}, "runtime_unavailable", "agent: no such module"),
        ({"error": "capabilities: x", "errno": "5"}, "runtime_unavailable", "capabilities: x"),
        (None, "runtime_unavailable", "no reason given"),
    ],
)
async def test_a_permanent_failure_is_not_retryable(report: Any, code: str, message: str) -> None:
    ready, write_end = os.pipe()
    with os.fdopen(ready, "rb"):
        with os.fdopen(write_end, "wb") as line:
            line.write(b"" if report is None else json.dumps(report).encode() + b"\n")
        container: Any = SimpleNamespace(ready=ready, agent_log=SimpleNamespace(tail=lambda: ""))
        with pytest.raises(HoldfastError) as failed:
            await wait_ready(container, 5)
    assert failed.value.code == code
    assert failed.value.retryable is (code == "runtime_unavailable")
    assert message in failed.value.message
