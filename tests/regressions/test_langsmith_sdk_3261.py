"""langsmith-sdk #3261: a connection that closed before the command's `started` arrived ended the whole run.

The client could neither retry (the command might have begun: a second `git push`) nor continue. Our design has their fix: the client
chooses the command's id, and the same id attaches. Here: the connection is cut after every possible amount of what the client sends.
"""

from __future__ import annotations

import secrets

import pytest

from tests.regressions.conftest import Link
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

STEP_BYTES = 40
MOST_BYTES = 900
"""The handshake, Hello, Open and Run are about this long together."""


@pytest.mark.parametrize("way", ["exec", "shell", "start"])
def test_cut_before_started_runs_once_and_answers(link: Link, way: str) -> None:
    marker = f"/tmp/ran-{secrets.token_hex(6)}"
    cuts = 0
    for number, budget in enumerate(range(STEP_BYTES, MOST_BYTES, STEP_BYTES)):
        sandbox = link.fresh()
        before = link.proxy.faults.cuts
        link.proxy.cut_next(budget)
        script = f"echo {number} >> {marker}; echo ran {number}"
        if way == "exec":
            result = sandbox.exec(script, timeout=60)
        elif way == "shell":
            result = sandbox.shell().run(script, timeout=60)
        else:
            result = sandbox.start(script, timeout=60).wait()
        assert (result.exit_code, result.stdout) == (0, f"ran {number}\n")
        cuts += link.proxy.faults.cuts - before
        sandbox.close()
    ran = link.sandbox.exec(f"cat {marker}").stdout.split()
    assert ran == [str(one) for one in range(number + 1)], "each ran once, in order"
    assert cuts >= 10
