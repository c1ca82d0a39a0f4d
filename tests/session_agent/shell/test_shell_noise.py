"""Any text given to a living shell gets one result in bounded time, and the shell works afterwards."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from session_agent.agent.context import SandboxLimits
from tests.support.process_channel import client

PIECES = (
    "'", '"', "`", "$(", "${", "((", "))", "[[", "{", "}", "(", ")", ";", "&", "&&", "|", "|&", "<<E\n", "E\n", "<<<x", ">&2", ">&-",
    "2>&1", "<&-", "\n", "\\", "\\\n", "#", "!", "*", "~", "\t", "\x01", "\x7f", "é", "if ", "then ", "fi\n", "do ", "done\n", "for x in ",
    "while ", "case x in ", "esac\n", "function f ", "f()", "return ", "break ", "continue ", "exit ", "exec ", "eval ", "set -e\n",
    "set -u\n", "set -n\n", "set -x\n", "trap '' INT\n", "trap 'echo t' ERR\n", "trap : EXIT\n", "cd /\n", "unset PATH\n", "unset -f f\n",
    "echo x ", "cat ", "read y ", "wait ", "sleep 0.01 ", "kill $$ ", "kill -9 $$ ", "kill -INT $$ ", "kill -STOP $$ ", "exec 1>&- ",
    "alias a=b\n", "printf() { :; }\n", "IFS=\n", "PS1=x\n", "shopt -s extglob\n", "ulimit -n 30\n", "local z\n", "declare -i PWD\n",
)  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_random_scripts_get_a_result(kind: str) -> None:
    seed = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
    print("seed", seed)
    rng = random.Random(seed)
    async with client(SandboxLimits(abort_patience_s=0.1), env={"PATH": os.environ["PATH"]}) as sandbox:
        shell = sandbox.shell(shell=kind)
        for _ in range(60):
            script = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 12)))
            async with asyncio.timeout(60):
                outcome = await shell.run(script, timeout_s=0.15)
            assert "error" not in outcome.result, script
            assert isinstance(outcome.exit_code, int), script
        again = await shell.run("set +enx 2>/dev/null; trap - DEBUG ERR 2>/dev/null; true", timeout_s=3)
        assert isinstance(again.exit_code, int)
