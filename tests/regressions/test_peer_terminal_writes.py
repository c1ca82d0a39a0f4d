"""In another released project, a non-blocking pseudo-terminal took about 10 KiB at a time, and what it refused was lost.

No public issue; found by reading its code (reliability.md, last lines). Here: a large paste arrives whole and in order, also when the
program reads late, and a program that never reads does not block the others.
"""

from __future__ import annotations

import hashlib

import pytest
from holdfast import Sandbox

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]


@pytest.mark.parametrize("size", [4_000, 10_241, 65_536, 1_000_000])
def test_a_large_paste_arrives_whole(sandbox: Sandbox, size: int) -> None:
    data = (b"0123456789abcdefghijklmnopqrstuvwxyz" * (size // 36 + 1))[:size]
    script = f"stty raw -echo; printf ready; sleep 0.2; head -c {size} | sha256sum"
    with sandbox.terminal(["sh", "-c", script]) as terminal:
        seen = b""
        for chunk in terminal:
            seen += chunk.data
            if seen == b"ready":
                terminal.write(data)
        assert seen.removeprefix(b"ready").split()[0] == hashlib.sha256(data).hexdigest().encode()


def test_a_program_that_does_not_read_blocks_no_other_command(sandbox: Sandbox) -> None:
    with sandbox.terminal(["sh", "-c", "stty raw -echo; printf ready; exec sleep 60"]) as terminal:
        for chunk in terminal:
            if b"ready" in chunk.data:
                break
        terminal.write(b"x" * 200_000)
        assert sandbox.exec("echo here", timeout=60).stdout == "here\n"
        terminal.resize(40, 100)
        terminal.kill()
        assert terminal.wait(timeout=60).exit_code == 137
