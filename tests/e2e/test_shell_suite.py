"""The shell-behaviour suite through the whole chain: SDK, gateway, relay, agent, a real bash and a real sh in one sandbox.

The cases are data (`tests.support.shell_cases`), shared with the agent's own suite; here each one answers through the public SDK,
in bounded time, and the next command in the same shell works.
"""

from __future__ import annotations

import hashlib
import re
import time

import pytest
from holdfast import CommandResult, RequestTooLargeError, Sandbox
from holdfast_wire.limits import MESSAGE_BYTES

from tests.support.requires import requires
from tests.support.shell_cases import CASES, Case

pytestmark = [requires("namespaces", "redis", "bash")]

AFTER_LIMIT_S = 60.0
KEPT_BYTES = 64 * 1024 * 1024
"""How much of a stream the SDK keeps by default."""

POISON = {
    "exit": "exit",
    "exec true": "exec",
    "set -e; false": "set -e",
    "unterminated quote": "unterminated quote",
    "unterminated here document": "unterminated here document",
    "closed descriptors": "closing everything",
    "trap '' TERM": "trap '' TERM INT",
    "endless builtin loop": "endless builtin loop",
    "background holder of stdout": "background holder of stdout",
    "stopped job": "a stopped job",
    "10 MB line": "10 MB line",
    "NUL and invalid UTF-8": "NUL and invalid UTF-8",
}
"""The hostile commands that the requirements name, and the case that covers each."""

_PARAMS = [pytest.param(case, shell, id=f"{case.name}-{shell}") for case in CASES for shell in case.shells]


def test_the_suite_covers_the_requirements() -> None:
    names = {case.name for case in CASES}
    for shell in ("bash", "sh"):
        assert len([case for case in CASES if shell in case.shells]) >= 60
    assert set(POISON.values()) <= names, sorted(set(POISON.values()) - names)


@pytest.mark.parametrize(("case", "shell"), _PARAMS)
def test_case(sandbox: Sandbox, case: Case, shell: str) -> None:
    with sandbox.shell(shell=shell, cwd="/", env=case.env) as living:
        assert living.kind == shell
        for script in case.before:
            living.run(script)
        script = case.script if isinstance(case.script, str) else case.script.decode("utf-8", "surrogateescape")
        began = time.monotonic()
        if len(script) > MESSAGE_BYTES:  # larger than one message: refused before a request is sent
            with pytest.raises(RequestTooLargeError, match=r"files\.write"):
                living.run(script, timeout=case.timeout_s)
        else:
            compare(case, living.run(script, timeout=case.timeout_s))
        assert time.monotonic() - began < case.limit_s
        began = time.monotonic()
        after = living.run(case.after, timeout=AFTER_LIMIT_S)
        assert after.stdout_bytes == case.after_stdout, after
        assert time.monotonic() - began < AFTER_LIMIT_S


def compare(case: Case, result: CommandResult) -> None:
    """The result is as the case states; the agent's own count of each stream agrees with the received bytes."""
    if case.exit_code is not None:
        assert result.exit_code == case.exit_code, result
    if case.stdout is not None:
        assert result.stdout_bytes == case.stdout, result
    if case.stderr is not None:
        assert result.stderr_bytes == case.stderr, result
    if case.stdout_has is not None:
        assert case.stdout_has in result.stdout_bytes
    if case.stderr_has is not None:
        assert re.search(case.stderr_has, result.stderr_bytes)
    if case.stdout_bytes is not None:
        assert len(result.stdout_bytes) == case.stdout_bytes
    if case.timed_out is not None:
        assert result.timed_out is case.timed_out
    if case.restarted is not None:
        assert result.shell_restarted is case.restarted
    if case.cwd is not None:
        assert result.cwd == case.cwd
    for stream, data in ((1, result.stdout_bytes), (2, result.stderr_bytes)):
        count = result.streams[stream]
        assert count.dropped == 0
        if result.truncated and len(data) == KEPT_BYTES:  # a flood: only the head is kept, but all bytes are counted
            assert count.seen > len(data)
        else:
            assert (count.seen, count.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert not result.truncated or KEPT_BYTES in (len(result.stdout_bytes), len(result.stderr_bytes))
