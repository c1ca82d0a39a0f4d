"""How an agent proves its identity, and how a spare's agent is adopted: the gateway's real code against a real agent over sockets
(PROTOCOL §1.3, §1.6, §1.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire import proof
from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import BODY_HEADER, DIAL_HEADER, agent_token, body_mac, dial_header, seal_token

from gateway.agents.agent_connection import AgentConnection
from gateway.agents.dial import DialError, Dialled, adopt_agent, dial_agent
from session_agent.agent.session import connection as connection_module
from session_agent.agent.session.adoption import BODY_BYTES
from session_agent.agent.settings import AgentSettings
from session_agent.agent.startup.server import AgentServer, listening_socket
from tests.support.front import sdk_on

UID = "4be0643f-1d98-573b-97cd-ca98a65347dd"
OLD = agent_token("deployment", "pool-1", "1")
NEW = agent_token("deployment", "sb-1", "2")
IDENTITY: dict[str, Any] = {"sandbox_id": "sb-1", "incarnation": "2", "env": {"GIVEN": "yes"}, "labels": {"run": "7"}}
VECTORS = Path(__file__).resolve().parents[3] / "schemas/vectors/proof.json"


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[tuple[AgentServer, str]]:
    path = f"unix://{tmp_path}/agent.sock"
    server = AgentServer(AgentSettings("pool-1", OLD, "1", env={"IMAGE": "says", "GIVEN": "no"}, workdir="/", pod_uid=UID, grace_s=0))
    await server.start(listening_socket(path))
    yield server, path
    await server.leave()


async def reach(endpoint: str, token: str) -> None:
    (await dial_agent(endpoint, token, 5.0)).transport.abort()


def test_golden_vectors() -> None:
    for case in json.loads(VECTORS.read_text()):
        result = getattr(proof, case["function"])(*(bytes.fromhex(a["hex"]) if isinstance(a, dict) else a for a in case["arguments"]))
        assert result == case["result"], case


async def test_an_agent_proves_its_pod(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    await reach(endpoint, OLD)
    await reach(f"{endpoint}#{UID}", OLD)
    with pytest.raises(DialError) as refused:
        await reach(f"{endpoint}#{UID[:-1]}e", OLD)
    assert refused.value.code == "agent_identity"


async def test_an_agent_that_reports_no_pod_is_refused(agent: tuple[AgentServer, str]) -> None:
    server, endpoint = agent
    server.identity = ""
    await reach(endpoint, OLD)
    with pytest.raises(DialError) as refused:
        await reach(f"{endpoint}#{UID}", OLD)
    assert refused.value.code == "agent_identity"


async def test_an_identity_with_a_wrong_proof_is_refused(agent: tuple[AgentServer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The header was changed on the way: the proof is for another pod."""
    monkeypatch.setattr(connection_module, "answer_dial", lambda token, header, identity: proof.answer_dial(token, header, "another pod"))
    for endpoint in (agent[1], f"{agent[1]}#{UID}"):
        with pytest.raises(DialError) as refused:
            await reach(endpoint, OLD)
        assert refused.value.code == "agent_identity"


async def test_a_spare_agent_is_adopted(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    await adopt_agent(f"{endpoint}#{UID}", OLD, NEW, {**IDENTITY, "workdir": "/usr"}, 5.0)
    with pytest.raises(DialError) as refused:
        await reach(endpoint, OLD)
    assert refused.value.code == "agent_identity"
    async with sdk_on(f"{endpoint}#{UID}", NEW) as (sandbox, _):
        result = await sandbox.exec("echo $IMAGE $GIVEN; pwd")
        assert result.stdout == "says yes\n/usr\n"


async def test_an_agent_is_adopted_only_once(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    await adopt_agent(endpoint, OLD, NEW, IDENTITY, 5.0)
    with pytest.raises(HoldfastError) as refused:
        await adopt_agent(endpoint, NEW, OLD, IDENTITY, 5.0)
    assert refused.value.code == "sandbox_exists"
    await reach(endpoint, NEW)


async def test_an_agent_that_has_had_a_session_is_not_adopted(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    connection = AgentConnection(lambda: dial_agent(endpoint, OLD, 5.0), 5.0)
    await connection.connect()
    connection.close()
    with pytest.raises(HoldfastError) as refused:
        await adopt_agent(endpoint, OLD, NEW, IDENTITY, 5.0)
    assert refused.value.code == "sandbox_exists"
    await reach(endpoint, OLD)


async def test_adoption_closes_earlier_connections(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    dialled = await dial_agent(endpoint, OLD, 5.0)
    await adopt_agent(endpoint, OLD, NEW, IDENTITY, 5.0)

    async def earlier() -> Dialled:
        return dialled

    with pytest.raises(HoldfastError):
        await AgentConnection(earlier, 5.0).connect()


async def test_a_caller_with_the_wrong_token_or_pod_is_refused(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    with pytest.raises(HoldfastError) as refused:
        await adopt_agent(endpoint, NEW, OLD, IDENTITY, 5.0)
    assert refused.value.code == "key_invalid"
    with pytest.raises(DialError):
        await adopt_agent(f"{endpoint}#another-pod", OLD, NEW, IDENTITY, 5.0)


async def ask(endpoint: str, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"))
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


def request(body: bytes, *, length: int | None = None, path: str = "/adopt", mac: str | None = None) -> str:
    nonce = "0" * 32
    mac = body_mac(OLD, nonce, body) if mac is None else mac
    length = len(body) if length is None else length
    proven = f"{DIAL_HEADER}: {dial_header(OLD, nonce)}\r\n{BODY_HEADER}: {mac}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: agent\r\n{proven}Content-Length: {length}\r\n\r\n"


SEALED = {**IDENTITY, "token": seal_token(OLD, "0" * 32, NEW)}
WRONG: dict[str, tuple[Any, str]] = {
    "not an object": ([1], "invalid_json"),
    "no token": (IDENTITY, "invalid_argument"),
    "a short token": ({**SEALED, "token": "ab"}, "invalid_argument"),
    "no name": ({**SEALED, "sandbox_id": ""}, "invalid_argument"),
    "a name that is not a string": ({**SEALED, "sandbox_id": 7}, "invalid_argument"),
    "a name of many lines": ({**SEALED, "sandbox_id": "a\nb"}, "invalid_argument"),
    "an env that is not a map": ({**SEALED, "env": [1]}, "invalid_argument"),
    "an env with numbers": ({**SEALED, "env": {"A": 1}}, "invalid_argument"),
    "an env name with =": ({**SEALED, "env": {"A=B": "1"}}, "invalid_argument"),
    "an env with NUL": ({**SEALED, "env": {"A": "\0"}}, "invalid_argument"),
    "a relative workdir": ({**SEALED, "workdir": "here"}, "invalid_argument"),
    "labels that are not a map": ({**SEALED, "labels": "a"}, "invalid_argument"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_invalid_identity_is_refused_with_its_code(agent: tuple[AgentServer, str], name: str) -> None:
    given, code = WRONG[name]
    body = json.dumps(given).encode()
    status, error = await ask(agent[1], request(body), body)
    assert (error["code"], status // 100) == (code, 4)
    await reach(agent[1], OLD)


async def test_other_requests_are_refused(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    body = json.dumps(SEALED).encode()
    assert (await ask(endpoint, request(body, mac="0" * 64), body))[1]["code"] == "key_invalid"
    assert (await ask(endpoint, request(body), body[:-1] + b" "))[1]["code"] == "key_invalid"
    assert (await ask(endpoint, request(body, path="/other"), body))[0] == 404
    assert (await ask(endpoint, request(b"", length=BODY_BYTES + 1)))[0] == 413
    assert (await ask(endpoint, "POST /adopt HTTP/1.1\r\nX: " + "y" * 20_000))[0] == 413
    assert (await ask(endpoint, "POST /adopt HTTP/1.1\r\n\r\n"))[1]["code"] == "key_invalid"
    assert (await ask(endpoint, "PUT\r\n\r\n"))[1]["code"] == "invalid_argument"
    await reach(endpoint, OLD)


async def test_a_request_may_come_in_pieces(agent: tuple[AgentServer, str]) -> None:
    _, endpoint = agent
    body = json.dumps(SEALED).encode()
    reader, writer = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"))
    for byte in request(body).encode() + body:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await reach(endpoint, NEW)
