"""Listeners of the real agent code: where they may listen, and when a connection ends, for both sides."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.frames import Failed, Output

from session_agent.agent.network import listen
from session_agent.agent.network.listen import open_listen
from session_agent.agent.session.channels import Handler
from tests.support.channel import FakeChannel, serve
from tests.support.until import until_async


class FakeListener(FakeChannel):
    """A listener's channel; ``most`` connections are accepted."""

    def __init__(self, kind: str, params: dict[str, Any], *, most: int = 1000) -> None:
        super().__init__(kind, params)
        self.most = most
        self.connections: list[FakeChannel] = []

    def may_accept(self) -> bool:
        return len(self.connections) < self.most

    def accept(self, info: dict[str, Any], serving: Callable[[Any], Handler]) -> None:
        from holdfast_wire.frames import Accepted

        connection = FakeChannel("connection", info)
        connection.send(Accepted(connection.number, self.number, info))
        connection.handler = serving(connection)
        self.connections.append(connection)

    async def connection(self, number: int = 0) -> FakeChannel:
        await until_async(lambda: len(self.connections) > number, deadline_s=60, what="a connection")
        return self.connections[number]


def listening(most: int = 1000, **params: Any) -> FakeListener:
    channel = serve(open_listen, "listen", "/", params, channel=FakeListener("listen", params, most=most))
    assert isinstance(channel, FakeListener)
    return channel


async def dial(channel: FakeListener) -> socket.socket:
    info = await channel.opened()
    family, place = (socket.AF_UNIX, info["path"]) if "path" in info else (socket.AF_INET, (info["host"], info["port"]))
    sock = socket.socket(family)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, place)
    except OSError:
        sock.close()
        raise
    return sock


async def received(sock: socket.socket, size: int = 100) -> bytes:
    async with asyncio.timeout(60):
        return await asyncio.get_running_loop().sock_recv(sock, size)


async def test_bytes_both_ways_and_both_half_closes() -> None:
    channel = listening(port=0)
    with await dial(channel) as sock:
        sock.sendall(b"hello")
        connection = await channel.connection()
        assert connection.params["peer"][0] == "127.0.0.1"
        await until_async(lambda: bytes(connection.output) == b"hello", deadline_s=60, what="its bytes")
        await connection.write(b"back", eof=True)
        assert await received(sock) == b"back"
        assert await received(sock) == b""
        sock.shutdown(socket.SHUT_WR)
        assert await connection.result() == {"sent": 4, "received": 5}
    assert [f.data for f in connection.facts if isinstance(f, Output)][-1] == b""
    channel.handler.close(False)
    assert await channel.result() == {}


async def test_the_port_is_free_after_the_listener_and_its_connections_go_on() -> None:
    channel = listening(port=0)
    port = (await channel.opened())["port"]
    with await dial(channel) as sock:
        connection = await channel.connection()
        channel.handler.close(False)
        await channel.result()
        again = listening(port=port)
        assert (await again.opened())["port"] == port
        await connection.write(b"still here")
        assert await received(sock) == b"still here"
        connection.handler.drop()
        with pytest.raises(ConnectionResetError):
            await received(sock)
    again.handler.drop()
    with pytest.raises(ConnectionRefusedError):
        await dial(again)


async def test_closing_before_the_end_of_the_input_is_a_reset() -> None:
    channel = listening(port=0)
    with await dial(channel) as sock:
        connection = await channel.connection()
        connection.handler.close(False)
        with pytest.raises(ConnectionResetError):
            await received(sock)
        await connection.result()
    channel.handler.drop()


async def test_closing_at_once_after_the_accept_is_a_reset() -> None:
    """The transport does not exist yet."""
    channel = listening(port=0)
    with await dial(channel) as sock:
        await until_async(lambda: channel.connections, deadline_s=60, what="a connection")
        channel.connections[0].handler.close(False)
        with pytest.raises(ConnectionResetError):
            await received(sock)
    channel.handler.drop()


async def test_closing_after_the_end_of_the_input_delivers_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = listening(port=0)
    data = os.urandom(3_000_000)
    with await dial(channel) as sock:
        sock.sendall(b"unread " * 1000)
        connection = await channel.connection()
        writing = asyncio.ensure_future(connection.write(data, eof=True))
        got = b""
        while len(got) < len(data):
            got += await received(sock, 1 << 20)
            if writing.done() and not connection.handler._discarding:
                connection.handler.close(False)
                sock.sendall(b"more, which is dropped")
        assert got == data
        assert await received(sock) == b""
        assert not connection.ended.is_set()
        sock.shutdown(socket.SHUT_WR)
        await connection.result()
    channel.handler.drop()


async def test_a_program_that_never_closes_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "LINGER_S", 0.05)
    channel = listening(port=0)
    with await dial(channel) as sock:
        connection = await channel.connection()
        await connection.write(b"x" * 100, eof=True)
        connection.handler.close(False)
        connection.handler.close(False)
        await connection.result()
        assert await received(sock) == b"x" * 100
    channel.handler.drop()


async def test_a_reset_of_the_program_is_an_error() -> None:
    channel = listening(port=0)
    sock = await dial(channel)
    connection = await channel.connection()
    await connection.write(b"unread")
    await until_async(lambda: connection.consumed == 6, deadline_s=60, what="the bytes to be written")
    sock.close()
    error = await connection.error()
    assert (error["code"], error["detail"]["sent"]) == ("port_unreachable", 6)
    channel.handler.drop()


async def test_no_more_connections_than_the_session_permits() -> None:
    channel = listening(most=2, port=0)
    socks = [await dial(channel) for _ in range(5)]
    await channel.connection(1)
    assert not channel.handler._watching
    for sock in socks:
        sock.sendall(b"x")
    channel.most = 5
    channel.handler.writable()
    await channel.connection(4)
    channel.handler.drop()
    for sock, connection in zip(socks, channel.connections, strict=True):
        connection.handler.drop()
        sock.close()


async def test_a_lack_of_descriptors_delays_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PAUSE_S", 0.01)
    channel = listening(port=0)
    await channel.opened()
    failing = Failing(channel.handler._socket)
    channel.handler._socket = failing
    with await dial(channel):
        (await channel.connection()).handler.drop()
    assert failing.failures == 2
    channel.handler.drop()


class Failing:
    """A listening socket whose first two accepts fail."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self.failures = 0

    def accept(self) -> Any:
        if self.failures < 2:
            self.failures += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_unix_socket_is_made_for_all_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    channel = listening(path=str(path))
    assert await channel.opened() == {"path": str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with await dial(channel) as sock:
        sock.sendall(b"hello")
        connection = await channel.connection()
        await until_async(lambda: bytes(connection.output) == b"hello", deadline_s=60, what="its bytes")
        again = listening(path=str(path))
        assert (await again.error())["code"] == "file_exists"
        connection.handler.drop()
    channel.handler.close(False)
    await channel.result()
    assert not path.exists()


async def test_a_unix_socket_that_is_closed_while_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    channel = listening(path=str(path))
    channel.handler.close(False)
    await channel.handler._starting
    assert not path.exists()
    assert await channel.result() == {}


async def test_no_link_is_followed_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program replaces the socket by a link to a file of root before its mode is set."""
    path, secret = tmp_path / "sock", tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    original = os.open

    def replaced(name: Any, flags: int, *args: Any, **more: Any) -> int:
        if name == str(path):
            path.unlink()
            path.symlink_to(secret)
        return original(name, flags, *args, **more)

    monkeypatch.setattr(os, "open", replaced)
    channel = listening(path=str(path))
    assert (await channel.error())["code"] in ("file_exists", "invalid_path")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "invalid_argument"),
        ({"port": -1}, "invalid_argument"),
        ({"port": 65536}, "invalid_argument"),
        ({"port": "80"}, "invalid_argument"),
        ({"port": True}, "invalid_argument"),
        ({"path": 5}, "invalid_path"),
        ({"path": "/" + "x" * 107}, "invalid_path"),
        ({"path": "/no/such/directory"}, "file_not_found"),
        ({"path": "/tmp/x", "user": "no-such-user"}, "user_not_found"),
    ],
)
async def test_wrong_parameters(params: dict[str, Any], code: str) -> None:
    channel = listening(**params)
    assert (await channel.error())["code"] == code
    assert isinstance(channel.facts[-1], Failed)


async def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        channel = listening(port=other.getsockname()[1])
        error = await channel.error()
    assert error["code"] == "invalid_argument"
    assert "in use" in error["message"]
