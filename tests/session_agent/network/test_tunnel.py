"""Tunnels to real servers: bytes both ways, half-closes, back-pressure, and servers that reset the connection or are absent."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from holdfast_wire.frames import Output

from session_agent.agent.network.tunnel import open_tunnel
from tests.support.channel import FakeChannel, serve

Service = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def tunnel(port: object, **params: object) -> FakeChannel:
    return serve(open_tunnel, "tunnel", "/", {"port": port, **params})


@asynccontextmanager
async def server(service: Service, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await service(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(run, host, port)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await listening.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_bytes_both_ways_and_both_half_closes() -> None:
    data = os.urandom(5_000_000)
    async with server(echo) as port:
        channel = tunnel(port)
        assert (await channel.opened())["port"] == port
        await channel.write(data, eof=True)
        assert await channel.result() == {"sent": len(data), "received": len(data)}
    assert channel.output == data
    assert channel.consumed == len(data)
    assert [f.data for f in channel.facts if isinstance(f, Output)][-1] == b""


async def test_input_before_the_connection_is_established() -> None:
    async with server(echo) as port:
        channel = tunnel(port)
        channel.handler.write(b"early", True)
        await channel.result()
    assert channel.output == b"early"


async def test_the_server_may_answer_after_our_end() -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read()))
        await writer.drain()

    async with server(count) as port:
        channel = tunnel(port)
        await channel.write(b"x" * 100_000, eof=True)
        await channel.result()
    assert channel.output == b"100000"


async def test_we_may_send_after_the_servers_end() -> None:
    got = asyncio.get_running_loop().create_future()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        got.set_result(await reader.read())

    async with server(half) as port:
        channel = tunnel(port)
        async with asyncio.timeout(60):
            while not any(isinstance(f, Output) and not f.data for f in channel.facts):
                channel.heard.clear()
                await channel.heard.wait()
        assert not channel.ended.is_set()
        await channel.write(b"still here", eof=True)
        await channel.result()
        assert await got == b"still here"


async def test_a_port_without_a_listener_is_unreachable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening, so that no parallel test can listen
        port = held.getsockname()[1]
        error = await tunnel(port).error()
    assert error["code"] == "port_unreachable"
    assert error["hint"] == f"is anything listening on port {port}?"
    assert "Connection refused" in error["message"]


async def test_servers_on_ipv6_loopback_only_are_found() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening, so that no parallel test can listen
        try:
            async with server(echo, "::1", held.getsockname()[1]) as port:
                channel = tunnel(port)
                await channel.write(b"six", eof=True)
                await channel.result()
                assert channel.output == b"six"
                assert (await channel.opened())["host"] == "::1"
        except OSError:
            pytest.skip("there is no IPv6 here")


async def test_a_reset_is_port_unreachable() -> None:
    async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with server(resetting) as port:
        channel = tunnel(port)
        await channel.opened()
        await channel.write(b"x")
        error = await channel.error()
    assert error["code"] == "port_unreachable"
    assert "reset" in error["message"]
    assert error["detail"]["sent"] == 1


async def test_client_that_does_not_read_stops_the_server() -> None:
    sent = 0
    blocked = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(0)
        while sent < 64 * 1024 * 1024:
            writer.write(bytes(65536))
            sent += 65536
            if not blocked.is_set() and writer.transport.get_write_buffer_size():
                blocked.set()
            await writer.drain()

    async with server(flood) as port:
        channel = serve(open_tunnel, "tunnel", "/", {"port": port}, window=100_000, reading=False, keep=False)
        async with asyncio.timeout(60):
            await blocked.wait()
            while channel.room() > 0:
                await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert channel.output_bytes == 100_000
        channel._reading = True
        channel.read()
        async with asyncio.timeout(60):
            while channel.output_bytes < 64 * 1024 * 1024:
                channel.heard.clear()
                await channel.heard.wait()
        channel.handler.close(False)
        await channel.result()


async def test_server_that_does_not_read_gets_no_more_than_the_window() -> None:
    go = asyncio.Event()
    total = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal total
        await go.wait()
        while data := await reader.read(65536):
            total += len(data)

    async with server(slow) as port:
        channel = tunnel(port)
        await channel.opened()
        sending = asyncio.create_task(channel.write(bytes(32 * 1024 * 1024), eof=True))
        async with asyncio.timeout(60):
            while not channel.handler._paused:
                await asyncio.sleep(0)
        assert channel.handler._transport.get_write_buffer_size() <= 1024 * 1024 + 131_072
        go.set()
        await sending
        assert (await channel.result())["sent"] == 32 * 1024 * 1024
    assert total == 32 * 1024 * 1024


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_the_socket_closes_with_the_channel(how: str) -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            gone.set()

    async with server(wait) as port:
        channel = tunnel(port)
        await channel.opened()
        if how == "close":
            channel.handler.close(False)
            await channel.result()
        else:
            channel.handler.drop()
        async with asyncio.timeout(60):
            await gone.wait()


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_a_channel_that_ends_while_it_connects(how: str) -> None:
    async with server(echo) as port:
        channel = tunnel(port)
        if how == "close":
            channel.handler.close(False)
            await channel.result()
        else:
            channel.handler.drop()
        connecting = channel.handler._connecting
        await asyncio.wait([connecting], timeout=60)
        assert connecting.done()


@pytest.mark.parametrize(
    "params",
    [{"port": None}, {"port": 0}, {"port": 65536}, {"port": "80"}, {"port": True}, {"port": 1, "host": ""}, {"port": 1, "host": 5}],
)
async def test_params_of_wrong_types_are_invalid_arguments(params: dict[str, object]) -> None:
    channel = serve(open_tunnel, "tunnel", "/", params)
    assert (await channel.error())["code"] == "invalid_argument"


@pytest.mark.parametrize("host", ["x" * 70 + ".invalid", "a..b", "no-such-host.invalid"])
async def test_hosts_that_do_not_exist(host: str) -> None:
    assert (await tunnel(1, host=host).error())["code"] == "port_unreachable"
