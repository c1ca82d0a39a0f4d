"""Rotation of the deployment's secret: sessions, tickets and agents of the old secret work while it is listed as another secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.identity.secrets import read_secrets
from gateway.sessions import tickets
from gateway.use_cases.service import Gateway
from tests.gateway.harness import SECRET, ScriptedAgent, Served, echo, id_of_adas, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")

OLD = "o" * 64


def set_other_secrets(gateway: Gateway, *others: str) -> None:
    """Configure ``gateway`` as after a restart with these secrets besides its own."""
    gateway.secrets = (gateway.secrets[0], *others)


async def refused(served: Served, **headers: str) -> str:
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as caught:
        async with served.attach("sb-1", **headers):
            pass
    return str(caught.value.response.headers.get("content-type")) + bytes(caught.value.response.body or b"").decode()


async def test_an_agent_of_the_old_secret_is_reached_while_it_is_listed(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, ScriptedAgent(echo, secret=OLD) as agent:
        await served.place("sb-1", agent.endpoint)
        assert "agent_identity" in await refused(served)
        set_other_secrets(served.gateway, "x" * 64, OLD)
        async with served.attach("sb-1") as client:
            await client.send(b"\x90")
            assert await client.recv() == b"\x90"
            assert client.response is not None
            text = client.response.headers[tickets.HEADER]
        assert tickets.read((SECRET,), text, 0.0) is not None, "new tickets are signed with the new secret"
        set_other_secrets(served.gateway)
        assert "agent_identity" in await refused(served)


async def test_a_ticket_of_the_old_secret_resumes_without_redis(redis_url: str, redis_server: RedisServer, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, ScriptedAgent(echo, secret=OLD) as agent:
        await served.place("sb-1", agent.endpoint)
        text = tickets.sign(OLD, tickets.Ticket("sb-1", "ada", "1" * 16, agent.endpoint, 2**40))
        redis_server.stop()
        try:
            assert "placement_unavailable" in await refused(served, X_Holdfast_Ticket=text)
            set_other_secrets(served.gateway, OLD)
            async with served.attach("sb-1", X_Holdfast_Ticket=text) as client:
                await client.send(b"\x90")
                assert await client.recv() == b"\x90"
        finally:
            redis_server.start()


async def test_new_sandboxes_are_made_with_the_new_secret(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, served.client() as client:
        set_other_secrets(served.gateway, OLD)
        await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})
        (order,) = served.runtime.orders
        assert order.token == agent_token(SECRET, id_of_adas("sb-1"), order.spec.incarnation)
        assert order.other_tokens == (agent_token(OLD, id_of_adas("sb-1"), order.spec.incarnation),)


def test_the_file_of_other_secrets(tmp_path: Path) -> None:
    own, path = tmp_path / "secret", tmp_path / "other-secrets"
    own.write_text(f"{SECRET}\n")
    assert read_secrets(own, path) == (SECRET,)
    path.write_text("")
    assert read_secrets(own, path) == (SECRET,)
    path.write_text(f"\n{OLD}\n  {SECRET}  \n{OLD}\n")
    assert read_secrets(own, path) == (SECRET, OLD)
    path.write_text("\n".join(str(number) * 32 for number in range(5)))
    with pytest.raises(ValueError, match="1 to 5 secrets"):
        read_secrets(own, path)
    path.write_text(f"{OLD}\nshort\n")
    with pytest.raises(ValueError, match="at least 32 characters") as caught:
        read_secrets(own, path)
    assert "short\n" not in str(caught.value)
    assert OLD not in str(caught.value)
    assert not isinstance(caught.value, HoldfastError)
