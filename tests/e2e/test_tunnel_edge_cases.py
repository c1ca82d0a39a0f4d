"""Tunnels to a silent server, invalid addresses, and tunnels whose sandbox ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, InvalidArgumentError, Sandbox, SandboxClient
from holdfast._sync.tunnel import Tunnel

from tests.support.stack import Stack
from tests.support.until import until

SILENT = """
import socket, time
server = socket.create_server(("127.0.0.1", 7070))
held = []
while True:
    held.append(server.accept())
"""


@pytest.fixture(scope="module")
def silent(sandbox: Sandbox) -> Iterator[int]:
    """A port whose server accepts connections, sends nothing and never closes them."""
    with sandbox.start(["python3", "-c", SILENT], stdin=False):
        until(lambda: sandbox.exec(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7070"]).ok, deadline_s=60, what="the server to listen")
        yield 7070


def threads_of(tunnel: Tunnel) -> list[threading.Thread]:
    return [thread for thread in tunnel._background._threads if thread.is_alive()]


def test_closing_a_tunnel_ends_connections_that_the_server_holds_open(sandbox: Sandbox, silent: int) -> None:
    tunnel = sandbox.tunnel(silent)
    connections = [socket.create_connection(tunnel.address, timeout=60) for _ in range(40)]
    for connection in connections:
        connection.sendall(b"x")
    until(lambda: len(threads_of(tunnel)) >= 80, deadline_s=60, what="all connections to be served")
    began = time.monotonic()
    tunnel.close()
    for connection in connections:
        assert connection.recv(1) == b""
        connection.close()
    assert time.monotonic() - began < 20, "the time does not grow with the number of connections"
    until(lambda: not threads_of(tunnel), deadline_s=60, what="their threads to end")
    assert sandbox.exec("echo on").stdout == "on\n"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"local_port": port} for port in (-1, 70000, "80", True)),
        *({name: host} for name in ("local_host", "host") for host in ("", 5)),
        {"local_host": None},
    ],
)
def test_invalid_hosts_and_ports_are_refused_at_once(sandbox: Sandbox, wrong: dict[str, Any]) -> None:
    """An empty ``local_host``, most often an unset variable, would mean every interface of this machine."""
    with pytest.raises(InvalidArgumentError, match="host" if "_port" not in str(wrong) else "port"):
        sandbox.tunnel(8000, **wrong)


@pytest.mark.parametrize("how", ["delete", "close"])
def test_a_tunnel_ends_with_its_sandbox(client: SandboxClient, how: str) -> None:
    """Otherwise its port would accept connections that cannot be forwarded."""
    sandbox = client.create_sandbox("host")
    try:
        address = sandbox.tunnel(7070).address
        socket.create_connection(address, timeout=30).close()
        getattr(sandbox, how)()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=30)
    finally:
        sandbox.delete()


async def test_an_asynchronous_tunnel_ends_with_its_sandbox(stack: Stack) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        async with await client.create_sandbox("host") as sandbox:
            address = (await sandbox.tunnel(7070)).address
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
