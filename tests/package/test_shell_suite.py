"""The shell-behaviour suite through the bundle, in a busybox image and in a Debian one: SDK, real proof, agent as PID 1.

The cases of `tests.support.shell_cases` run in one pod per image, each in its own shell. Cases that need what a small image does not
have are listed with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from session_agent.bundle.build import Bundle
from tests.e2e.test_shell_suite import compare
from tests.package.pod import Pod, running
from tests.support.requires import requires
from tests.support.shell_cases import CASES, Case

pytestmark = [requires("namespaces", "root", "busybox"), pytest.mark.timeout(300)]

NOT_IN_BUSYBOX = {
    "private descriptors are closed": "its ls is built into the shell, so no exec closes the private descriptors",
}
TOO_LONG = {"10 MB script"}
"""Larger than one message: the SDK refuses it before it sends anything."""
AT_ONCE = 4


async def _failures(pod: Pod, cases: list[Case], shell: str) -> dict[str, str]:
    """Name → failure of each case that failed."""
    failures: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)
    async with running(pod) as sandbox:

        async def one(case: Case) -> None:
            async with gate:
                living = await sandbox.shell(shell=shell, cwd="/", env=case.env)
                try:
                    async with asyncio.timeout(40):
                        for script in case.before:
                            await living.run(script)
                        script = case.script if isinstance(case.script, str) else case.script.decode("utf-8", "surrogateescape")
                        compare(case, await living.run(script, timeout=case.timeout_s))
                        after = await living.run(case.after, timeout=10)
                        assert after.stdout_bytes == case.after_stdout, after
                except (AssertionError, TimeoutError) as error:
                    failures[case.name] = f"{error}"[:300]
                finally:
                    await living.close()

        await asyncio.gather(*(one(case) for case in cases))
    return failures


async def test_busybox(bundle: Bundle, root_of: Callable[[str], Path]) -> None:
    cases = [case for case in CASES if "sh" in case.shells and case.name not in {*NOT_IN_BUSYBOX, *TOO_LONG}]
    assert len(cases) >= 60
    assert await _failures(Pod(root_of("busybox"), bundle.folder), cases, "sh") == {}


@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_debian(bundle: Bundle, root_of: Callable[[str], Path], shell: str) -> None:
    cases = [case for case in CASES if shell in case.shells and case.name not in TOO_LONG]
    assert len(cases) >= 60
    assert await _failures(Pod(root_of("debian"), bundle.folder), cases, shell) == {}
