"""What a sandbox that does not start says of it: for ever, or just now."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.readiness import agent_epoch


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"error": "file tree: mount overlay on root", "errno": errno.ELOOP}, "sandbox_failed"),
        ({"error": "file tree: mount overlay on root", "errno": errno.ENOMEM}, "runtime_unavailable"),
        ({"error": "agent: no such module", "errno": None}, "runtime_unavailable"),
        ({"error": "capabilities: x", "errno": "5"}, "runtime_unavailable"),
        (None, "runtime_unavailable"),
    ],
)
async def test_what_no_other_try_would_change_is_not_tried_again(said: Any, code: str) -> None:
    ready, theirs = os.pipe()
    with os.fdopen(ready, "rb"):
        with os.fdopen(theirs, "wb") as line:
            line.write(b"" if said is None else json.dumps(said).encode() + b"\n")
        container: Any = SimpleNamespace(ready=ready, agent_log=SimpleNamespace(tail=lambda: ""))
        with pytest.raises(HoldfastError) as failed:
            await agent_epoch(container, 5)
    assert failed.value.code == code
    assert failed.value.retryable is (code == "runtime_unavailable")
    assert said is None or said["error"] in failed.value.message
