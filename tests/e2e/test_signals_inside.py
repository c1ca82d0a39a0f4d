"""Commands send signals to all processes that they can see, including the sandbox's first process: the session continues."""

from __future__ import annotations

import pytest
from holdfast import Sandbox


@pytest.mark.parametrize("how", ["for n in $(seq 1 64); do kill -$n 1; done 2>/dev/null", "pkill -TERM -f holdfast", "kill -TERM -- -1"])
def test_the_first_process_survives_all_signals(sandbox: Sandbox, how: str) -> None:
    with sandbox.shell() as shell:
        shell.run("N=41")
        sandbox.exec(["sh", "-c", how], timeout=30)
        epoch = sandbox.exec(["cat", "/proc/1/comm"]).stdout
        assert epoch
        result = shell.run("echo $((N + 1))", timeout=30)
        assert (result.stdout, result.cause) == ("42\n", None)
    assert sandbox.refresh().status == "ready"
