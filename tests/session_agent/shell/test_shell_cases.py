"""The shell-behaviour suite against the agent's own handler, on a real bash and a real sh."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re

import pytest

from tests.support.process_channel import client
from tests.support.shell_cases import CASES, Case

_AFTER_S = 60.0
_PARAMS = [pytest.param(case, shell, id=f"{case.name}-{shell}") for case in CASES for shell in case.shells]


def test_there_are_enough_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize(("case", "shell"), _PARAMS)
async def test_case(case: Case, shell: str) -> None:
    async with client(env={"PATH": os.environ["PATH"]}) as sandbox:
        live = sandbox.shell(shell=shell, cwd="/", env=case.env)
        for script in case.before:
            await live.run(script)
        async with asyncio.timeout(case.limit_s):
            outcome = await live.run(case.script, timeout_s=case.timeout_s)
        result = outcome.result
        shell_result = result["shell"]
        if case.exit_code is not None:
            assert outcome.exit_code == case.exit_code, outcome
        if case.stdout is not None:
            assert outcome.stdout == case.stdout, outcome.stderr
        if case.stderr is not None:
            assert outcome.stderr == case.stderr
        if case.stdout_has is not None:
            assert case.stdout_has in outcome.stdout
        if case.stderr_has is not None:
            assert re.search(case.stderr_has, outcome.stderr)
        if case.stdout_bytes is not None:
            assert len(outcome.stdout) == case.stdout_bytes
        if case.timed_out is not None:
            assert result["timed_out"] is case.timed_out
        if case.restarted is not None:
            assert shell_result["restarted"] is case.restarted
        if case.restored is not None:
            assert shell_result["restored"] is case.restored
        if case.cwd is not None:
            assert shell_result["cwd"] == case.cwd
        assert result["streams"][1] == [len(outcome.stdout), 0, hashlib.sha256(outcome.stdout).hexdigest()]
        assert result["streams"][2] == [len(outcome.stderr), 0, hashlib.sha256(outcome.stderr).hexdigest()]
        assert not outcome.gaps
        async with asyncio.timeout(_AFTER_S):
            after = await live.run(case.after, timeout_s=_AFTER_S)
        assert after.stdout == case.after_stdout, after
