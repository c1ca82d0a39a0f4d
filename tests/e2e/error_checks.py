"""What an error must contain in every API: a type from the error table, a clear message, and a hint for the caller.

Owns the assertions and the list of calls that the tests of bad input and of lost sandboxes share.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
from holdfast import HoldfastError, Sandbox
from holdfast_wire.errors import TABLE


def is_clear(error: HoldfastError, code: str | None = None) -> None:
    """The error has a message, a fault and a hint, and contains neither a traceback nor a key."""
    assert error.code in TABLE
    assert code is None or error.code == code
    assert error.message
    assert error.message == error.message.strip()
    assert error.fault in ("caller", "workload", "infrastructure")
    # the message about an invalid argument states what the argument must be
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
