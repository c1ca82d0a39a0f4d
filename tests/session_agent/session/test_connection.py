"""The agent's connections over real sockets: which are accepted, what breaks one, and what survives (PROTOCOL §1, §3, §9)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Ack, Close, Closed, Fact, Hello, Open, Opened, Output, Ping, Pong, Run, Welcome, Write
from holdfast_wire.limits import WINDOW_BYTES, Timing
from holdfast_wire.proof import DIAL_HEADER, PROOF_HEADER, agent_token, check_proof, dial_header
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from session_agent.agent.context import AgentContext
from session_agent.agent.session import connection as connection_module
from session_agent.agent.session.channels import Channel, Handler
from session_agent.agent.settings import AgentSettings
from session_agent.agent.startup.server import AgentServer, listening_socket
from tests.support.until import until_async

TOKEN = agent_token("a deployment's secret", "sb", "1")


class Echo(Handler):
    """A channel kind for tests: answers Open, sends input back, and records whether it was dropped."""

    instances: ClassVar[list[Echo]] = []

    def __init__(self, context: AgentContext, channel: Channel) -> None:
        self.channel = channel
        self.dropped = False
        Echo.instances.append(self)
        self.send(Opened(channel.number, dict(channel.params)))

    def send(self, fact: Fact) -> None:
        self.channel.send(fact)

    def run(self, command_id: str, params: dict[str, Any]) -> None:
        raise RuntimeError("a bug in a handler")

    def write(self, data: bytes, eof: bool) -> None:
        self.send(Output(self.channel.number, 1, data))
        self.channel.consume(len(data))

    def close(self, detach: bool) -> None:
        self.send(Closed(self.channel.number, {}))

    def drop(self) -> None:
        self.dropped = True


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[tuple[AgentServer, str]]:
    path = str(tmp_path / "agent.sock")
    server = AgentServer(AgentSettings("sb", TOKEN, grace_s=0), {"tunnel": Echo, "shell": Echo})
    Echo.instances.clear()
    await server.start(listening_socket(f"unix://{path}"))
    yield server, path
    await server.leave()


def hello(session_id: str = "s" * 32, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "version": 1,
        "session_id": session_id,
        "secret": b"k" * 16,
        "agent_epoch": "",
        "generation": 0,
        "attempt": 1,
        "received": {},
        "next_channel": 1,
    }
    return Hello(**{**fields, **changes})


@contextlib.asynccontextmanager
async def connect(path: str, token: str = TOKEN, uri: str = "ws://agent/session") -> AsyncIterator[ClientConnection]:
    header = {DIAL_HEADER: dial_header(token, secrets.token_hex(16))}
    async with unix_connect(path, uri, additional_headers=header, compression=None, ping_interval=None) as connection:
        yield connection


async def send_hello(connection: ClientConnection, frame: Hello) -> Welcome:
    await connection.send(encode(frame))
    answer, _ = decode(await connection.recv(decode=False))
    assert isinstance(answer, Welcome)
    return answer


async def next_frame(connection: ClientConnection) -> Any:
    """The next frame other than an acknowledgement, which may arrive at any time."""
    while isinstance(frame := decode(await connection.recv(decode=False))[0], Ack):
        pass
    return frame


async def closed_with(connection: ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        async for _ in connection:
            pass  # frames that were sent before the Close
    assert connection.close_code is not None
    return connection.close_code, connection.close_reason or ""


async def test_healthz_needs_no_token(agent: tuple[AgentServer, str]) -> None:
    reader, writer = await asyncio.open_unix_connection(agent[1])
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_small_frames_are_sent_over_tcp_without_delay() -> None:
    server = AgentServer(AgentSettings("sb", TOKEN, grace_s=0), {})
    listener = listening_socket("tcp://127.0.0.1:0")
    await server.start(listener)
    _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
    await until_async(lambda: server._connections, deadline_s=60, what="the connection")
    (accepted,) = server._connections
    assert accepted._transport is not None
    assert accepted._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    writer.close()
    await server.leave()


async def test_the_agent_proves_that_it_has_the_token(agent: tuple[AgentServer, str]) -> None:
    nonce = secrets.token_hex(16)
    async with unix_connect(
        agent[1], "ws://agent/session", additional_headers={DIAL_HEADER: dial_header(TOKEN, nonce)}, compression=None
    ) as connection:
        assert connection.response is not None
        assert check_proof(TOKEN, nonce, connection.response.headers[PROOF_HEADER])


@pytest.mark.parametrize("token", ["", "x", agent_token("a deployment's secret", "sb", "2")])
async def test_a_wrong_token_gets_no_session(agent: tuple[AgentServer, str], token: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(agent[1], token):
            pass
    assert caught.value.response.status_code == 403
    assert PROOF_HEADER not in caught.value.response.headers


async def test_another_path_is_not_found(agent: tuple[AgentServer, str]) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(agent[1], uri="ws://agent/"):
            pass
    assert caught.value.response.status_code == 404


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (encode(Ping(1)), 4400),
        (b"\xc1", 4400),
        ("text", 4400),
        (encode(hello(version=2)), 4406),
        (encode(hello(session_id="short")), 4400),
        (encode(hello(agent_epoch="another")), 4414),
        (b"x" * 300_000, 1009),
    ],
)
async def test_a_breach_before_the_welcome_closes_the_connection(agent: tuple[AgentServer, str], message: bytes | str, code: int) -> None:
    async with connect(agent[1]) as connection:
        with contextlib.suppress(ConnectionClosed):  # the agent may close while the message is still being sent
            await connection.send(message)
        assert (await closed_with(connection))[0] == code


async def test_a_breach_ends_the_connection_but_not_the_session(agent: tuple[AgentServer, str]) -> None:
    async with connect(agent[1]) as connection:
        first = await send_hello(connection, hello())
        await connection.send(encode_item(Open(1, "tunnel", {}), 0))
        await next_frame(connection)
        await connection.send(encode_item(Open(2, "tunnel", {}), 7))
        code, reason = await closed_with(connection)
        assert code == 4400
        assert reason.startswith("protocol_error: ")
    async with connect(agent[1]) as connection:
        again = await send_hello(connection, hello(agent_epoch=first.agent_epoch, generation=1, attempt=2, received={1: 1}, next_channel=3))
        assert again.resumed
        assert again.received == {1: 1}
    assert not Echo.instances[0].dropped


async def test_items_after_a_breach_are_not_handled(agent: tuple[AgentServer, str]) -> None:
    """The next connection sends them again: an Open that had been handled would then use its channel number twice."""
    async with connect(agent[1]) as connection:
        await send_hello(connection, hello())
        for item in (Write(9, b"", False), Open(2, "tunnel", {})):
            connection.protocol.send_binary(encode_item(item, 0))
        connection.transport.write(b"".join(connection.protocol.data_to_send()))
        assert (await closed_with(connection))[0] == 4400
    assert not Echo.instances


async def test_the_newest_attach_wins(agent: tuple[AgentServer, str]) -> None:
    async with connect(agent[1]) as old:
        await send_hello(old, hello())
        async with connect(agent[1]) as new:
            assert (await send_hello(new, hello(attempt=2))).generation == 2
            assert (await closed_with(old))[0] == 4411
            await new.send(encode(Ping(9)))
            assert await next_frame(new) == Pong(9)


async def test_a_refused_hello_leaves_the_session_attached_to_its_client(agent: tuple[AgentServer, str]) -> None:
    server, path = agent
    async with connect(path) as holder:
        first = await send_hello(holder, hello())
        await holder.send(encode_item(Open(1, "tunnel", {}), 0))
        await next_frame(holder)
        async with connect(path) as wrong:
            await wrong.send(encode(hello(agent_epoch=first.agent_epoch, generation=1, attempt=2, received={1: 77}, next_channel=2)))
            assert (await closed_with(wrong))[0] == 4400
        await holder.send(encode(Ping(9)))
        assert await next_frame(holder) == Pong(9)
    async with connect(path) as never:
        await never.send(encode(hello("n" * 32, attempt=0)))
        assert (await closed_with(never))[0] == 4411
    assert "n" * 32 not in server.sessions._held, "a refused Hello created no session"


async def test_a_client_that_pings_and_never_reads_is_disconnected(agent: tuple[AgentServer, str]) -> None:
    server, path = agent
    reader, writer = await asyncio.open_unix_connection(path)
    header = f"{DIAL_HEADER}: {dial_header(TOKEN, '0' * 32)}"
    writer.write(
        f"GET /session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{header}\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    ping = bytes((0x89, 0x80 | 125)) + bytes(129)
    with pytest.raises(OSError):  # noqa: PT011, PT012
        for _ in range(2000):
            writer.write(ping * 100)
            async with asyncio.timeout(60):
                await writer.drain()
    await until_async(lambda: not server._connections, deadline_s=60, what="the connection to be gone")
    writer.close()


async def test_an_unknown_kind_fails_only_its_channel(agent: tuple[AgentServer, str]) -> None:
    async with connect(agent[1]) as connection:
        await send_hello(connection, hello())
        await connection.send(encode_item(Open(1, "teleport", {}), 0))
        failed = await next_frame(connection)
        assert failed.error["code"] == "unsupported"
        await connection.send(encode_item(Open(2, "tunnel", {"a": 1}), 0))
        assert await next_frame(connection) == Opened(2, {"a": 1})


async def test_a_bug_in_a_handler_fails_only_its_channel(agent: tuple[AgentServer, str], caplog: pytest.LogCaptureFixture) -> None:
    async with connect(agent[1]) as connection:
        await send_hello(connection, hello())
        await connection.send(encode_item(Open(1, "shell", {}), 0))
        await next_frame(connection)
        await connection.send(encode_item(Run(1, "c", {"script": "a secret"}), 1))
        failed = await next_frame(connection)
        assert failed.error["code"] == "internal"
        await connection.send(encode(Ping(1)))
        assert await next_frame(connection) == Pong(1)
    assert Echo.instances[0].dropped
    assert "a secret" not in caplog.text


async def test_input_may_arrive_in_single_bytes(agent: tuple[AgentServer, str]) -> None:
    reader, writer = await asyncio.open_unix_connection(agent[1])
    request = (
        "GET /session HTTP/1.1\r\nHost: agent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"{DIAL_HEADER}: {dial_header(TOKEN, '0' * 32)}\r\n\r\n"
    )
    message = encode(hello())
    masked = bytes([0x82, 0x80 | len(message)]) + b"\0\0\0\0" + message
    for byte in request.encode() + masked:
        writer.write(bytes([byte]))
        await writer.drain()
    await reader.readuntil(b"\r\n\r\n")
    head = await reader.readexactly(2)
    size = head[1] if head[1] < 126 else int.from_bytes(await reader.readexactly(2), "big")
    assert isinstance(decode(await reader.readexactly(size))[0], Welcome)
    writer.close()


async def test_a_connection_without_a_handshake_is_closed(agent: tuple[AgentServer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(agent[1])
    writer.write(b"GET /session HT")
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_too_many_connections_are_refused(agent: tuple[AgentServer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("session_agent.agent.startup.server.CONNECTIONS", 3)
    async with contextlib.AsyncExitStack() as stack:
        for i in range(3):
            await send_hello(await stack.enter_async_context(connect(agent[1])), hello(str(i) * 32))
        with pytest.raises(InvalidMessage) as refused:
            await stack.enter_async_context(connect(agent[1]))
        assert isinstance(refused.value.__cause__, EOFError), "the agent closes it without an answer"
    async with connect(agent[1]) as connection:
        await send_hello(connection, hello("z" * 32))


async def test_output_that_is_not_read_is_limited_to_the_window(agent: tuple[AgentServer, str]) -> None:
    """Credit bounds the output that a client has not read, however much the handler has to send."""
    async with connect(agent[1]) as connection:
        await send_hello(connection, hello())
        await connection.send(encode_item(Open(1, "tunnel", {}), 0))
        await next_frame(connection)
        handler = Echo.instances[0]
        sent = 0
        while room := handler.channel.room():
            piece = min(room, 128 * 1024)
            handler.send(Output(1, 1, b"x" * piece))
            sent += piece
        assert sent == WINDOW_BYTES - 1, "the greeting of the channel took one byte"


async def test_a_clean_close_ends_a_session_without_channels(agent: tuple[AgentServer, str]) -> None:
    _, path = agent
    async with connect(path) as connection:
        await send_hello(connection, hello())
        await connection.send(encode_item(Open(1, "tunnel", {}), 0))
        await next_frame(connection)
    async with connect(path) as connection:
        assert (await send_hello(connection, hello(attempt=2, received={1: 1}, next_channel=2))).resumed, "a channel was live"
        await connection.send(encode_item(Close(1), 1))
        await next_frame(connection)
    async with connect(path) as connection:
        assert not (await send_hello(connection, hello(attempt=3))).resumed
    async with connect(path) as connection:
        await send_hello(connection, hello())
        connection.transport.abort()
    async with connect(path) as connection:
        assert (await send_hello(connection, hello(attempt=2))).resumed, "a broken connection does not end the session"


async def test_a_flood_of_sessions_displaces_no_session_that_may_be_resumed(
    agent: tuple[AgentServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROTOCOL §3.10: all clients share the table, so the requests of one must not cost another its session."""
    monkeypatch.setattr("session_agent.agent.session.sessions.SESSIONS", 4)
    server, path = agent

    async def leave(session_id: str, *, channel: bool) -> None:
        async with connect(path) as connection:
            await send_hello(connection, hello(session_id))
            if channel:
                await connection.send(encode_item(Open(1, "tunnel", {}), 0))
                await next_frame(connection)
            connection.transport.abort()

    async def resumes(session_id: str, *, channel: bool) -> bool:
        async with connect(path) as connection:
            again = hello(session_id, attempt=2, agent_epoch=server.agent_epoch, generation=1, received={1: 1} if channel else {})
            await connection.send(encode(again))
            try:
                answer = await next_frame(connection)
            except ConnectionClosed:
                return (await closed_with(connection))[0] != 4414
            assert isinstance(answer, Welcome)
            connection.transport.abort()
            return answer.resumed

    async with contextlib.AsyncExitStack() as attached:
        await leave("working" * 3, channel=True)
        await leave("nothing" * 3, channel=False)
        await leave("working too" * 3, channel=True)
        flood = [await attached.enter_async_context(connect(path)) for _ in range(3)]
        await send_hello(flood[0], hello("flood 0" * 3))
        await send_hello(flood[1], hello("flood 1" * 3))  # the fifth session displaces one without channels, though not the oldest
        assert not await resumes("nothing" * 3, channel=False)
        await flood[2].send(encode(hello("flood 2" * 3)))
        assert (await closed_with(flood[2]))[0] == 4429, "the other sessions are attached, or were a moment ago"
        assert await resumes("working" * 3, channel=True)
        assert await resumes("working too" * 3, channel=True)
        await until_async(
            lambda: sum(h.connection is None for h in server.sessions._held.values()) == 2, deadline_s=60, what="both to be detached"
        )
        for number, name in enumerate(("working too" * 3, "working" * 3)):
            server.sessions._held[name].detached_at -= Timing().detached_least_s + 1 - number
        late = await attached.enter_async_context(connect(path))
        await send_hello(late, hello("late" * 4))
        assert "working" * 3 in server.sessions._held
        assert "working too" * 3 not in server.sessions._held, "no client tries to resume after so long, and it was detached first"
        assert sum(echo.dropped for echo in Echo.instances) == 1
        for connection, name in ((flood[0], "flood 0"), (flood[1], "flood 1"), (late, "late")):
            await connection.send(encode(Ping(1)))
            assert await next_frame(connection) == Pong(1), f"{name} stays attached"


def test_listening_addresses() -> None:
    with listening_socket("tcp://127.0.0.1:0") as listener:
        assert listener.family == socket.AF_INET
    for address in ("", "tcp://x", "http://x:1", "unix://"):
        with pytest.raises(HoldfastError, match="cannot listen") as refused:
            listening_socket(address)
        assert refused.value.code == "invalid_argument"
