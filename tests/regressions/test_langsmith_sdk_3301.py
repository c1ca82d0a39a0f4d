"""langsmith-sdk #3301: a healthy, silent command was given up on the sixth lost connection, though each reconnect had succeeded.

Their count of failed reconnects was only cleared by output, so it counted losses since the last output. Seen in production after ten
minutes of five good reconnects. Here: a command that prints nothing, and twelve cuts, each followed by a reattachment that worked.
"""

from __future__ import annotations

import secrets

import pytest
from holdfast import WaitTimeoutError

from tests.regressions.conftest import Link
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

CUTS = 12


def test_a_silent_command_outlives_any_number_of_reconnects(link: Link) -> None:
    gate = f"/tmp/gate-{secrets.token_hex(6)}"
    with link.sandbox.start(f"mkfifo {gate}; read word < {gate}; echo $word; exit 4") as process:
        for _ in range(CUTS):
            link.cut_and_reconnect()
            with pytest.raises(WaitTimeoutError):
                process.wait(timeout=0.01)
        link.sandbox.exec(f"echo released > {gate}", timeout=60)
        result = process.wait(timeout=60)
    assert (result.exit_code, result.stdout) == (4, "released\n")
    assert link.proxy.faults.cuts >= CUTS
