"""How long the control plane is unavailable after a kill of the leader, the node, or both, on a complete stack."""

from __future__ import annotations

import httpx
import pytest

from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis"), pytest.mark.timeout(180)]

LEADER_S = 6.0
"""A lease of 3 s, the start of a process, an expiry pass; on a machine with other work."""
NODE_S = 8.0


def create(client: httpx.Client, **more: object) -> str:
    made = client.post("/sandboxes", json={"image": "host", "wait": True, "cpu": 1, "memory": "256Mi", **more})
    assert made.status_code == 200, made.text
    return str(made.json()["sandbox_id"])


def until_signal(client: httpx.Client, sandbox_id: str, reason: str, deadline_s: float) -> float:
    """Seconds until the service reports why the sandbox ended."""

    def reported() -> bool:
        return bool(client.get(f"/sandboxes/{sandbox_id}").json().get("reason") == reason)

    with Stopwatch() as watch:
        until(reported, deadline_s=deadline_s, what=f"{sandbox_id} to have ended: {reason}")
        return watch.elapsed_s


@pytest.mark.alone
@pytest.mark.parametrize(("victims", "bar_s"), [(("controller",), LEADER_S), (("node",), NODE_S), (("controller", "node"), NODE_S)])
def test_an_end_is_reported_within_seconds_of_a_kill(victims: tuple[str, ...], bar_s: float) -> None:
    with (
        running_stack() as stack,
        httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60, trust_env=False) as client,
    ):
        sandbox_id = create(client, **({"lifetime_s": 2.0} if victims == ("controller",) else {}))
        _kill(stack, victims)
        reason = "ttl" if victims == ("controller",) else "node-lost"
        took_s = until_signal(client, sandbox_id, reason, 60)
        print(f"\n{' and '.join(victims)} killed: {reason} was reported after {took_s:.1f} s")
        assert took_s <= bar_s
        stack.wait_ready()


def _kill(stack: Stack, victims: tuple[str, ...]) -> None:
    for name in victims:
        stack.kill_process(name)
