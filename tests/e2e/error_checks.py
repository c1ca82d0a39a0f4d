"""What an error must say, whichever API it comes through: one clear typed answer, and what a caller can do about it.

Owns the assertions and the kit of uses that the tests of bad input and of lost sandboxes share.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
from holdfast import HoldfastError, Sandbox
from holdfast_wire.errors import TABLE


def is_clear(error: HoldfastError, code: str | None = None) -> None:
    """It says what is wrong, whose fault it is and what to do, in words, without a traceback or a key."""
    assert error.code in TABLE
    assert code is None or error.code == code
    assert error.message
    assert error.message == error.message.strip()
    assert error.fault in ("caller", "workload", "infrastructure")
    # what an invalid argument must be instead is what its message says
    assert error.hint or any(word in error.message for word in (" is ", "must", "cannot", " maps ")), error
    assert "Traceback" not in str(error)
    assert "hf_" not in str(error)


def is_typed(error: HoldfastError) -> None:
    assert error.code in TABLE
    assert error.message


def assert_problem(answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] in TABLE
    assert body["status"] == answer.status_code
    assert body["detail"]
    assert {"type", "title", "hint", "retryable", "fault"} <= set(body)


def uses(sandbox: Sandbox) -> list[Callable[[], object]]:
    return [
        sandbox.refresh,
        lambda: sandbox.exec("true"),
        sandbox.shell,
        lambda: sandbox.files.read("/etc/hostname"),
        lambda: sandbox.files.write("/tmp/x", b""),
        lambda: sandbox.apply_patch("x"),
        sandbox.keep_alive,
        lambda: sandbox.start("true"),
        sandbox.terminal,
        lambda: sandbox.tunnel(80),
    ]
