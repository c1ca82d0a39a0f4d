"""Connections to ports of sandboxes that the node gives away: where they lead, and what they cannot reach."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from holdfast_server.embed import free_port

from tests.node.harness import DEADLINE_S, Node, NodeClient, RefusedError, ask
from tests.support.requires import requires

pytestmark = requires("namespaces")
INCARNATION = "0" * 16
_SO_NETNS_COOKIE = 71
"""See socket(7): a number of the network namespace of a socket, since Linux 5.14."""

SERVE = """
import socket, threading
listener = socket.create_server((%r, %d), family=socket.AF_INET6 if ":" in %r else socket.AF_INET)
def serve():
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"inside " + connection.recv(100))
        connection.close()
threading.Thread(target=serve, daemon=True).start()
result = listener.getsockname()[1]
"""


async def serve_inside(endpoint: str, port: int = 0, host: str = "127.0.0.1") -> int:
    """Listen in the sandbox; the port."""
    found: int = await ask(endpoint, "python", script=SERVE % (host, port, host))
    return found


async def connect_port(node: Node, sandbox_id: str, port: Any, incarnation: str = INCARNATION) -> socket.socket:
    """What a gateway does. Raises RefusedError."""

    def connect() -> socket.socket:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(DEADLINE_S)
            control.connect(node.socket)
            request = {"id": 7, "op": "connect", "sandbox_id": sandbox_id, "incarnation": incarnation, "port": port}
            control.sendall(json.dumps(request).encode() + b"\n")
            data, descriptors, _, _ = socket.recv_fds(control, 65536, 4)
        answer = json.loads(data)
        assert answer["id"] == 7
        if not answer["ok"]:
            assert not descriptors
            raise RefusedError(answer["error"])
        (descriptor,) = descriptors
        return socket.socket(fileno=descriptor)

    return await asyncio.to_thread(connect)


def said(connected: socket.socket) -> bytes:
    connected.settimeout(DEADLINE_S)
    with connected:
        connected.sendall(b"word")
        return connected.recv(100)


def netns_cookie(of: socket.socket) -> int:
    return int(struct.unpack("=Q", of.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
async def test_a_program_on_loopback_is_reached_from_outside(shared: Node, client: NodeClient, host: str) -> None:
    box = await client.create("one")
    port = await serve_inside(box["endpoint"], host=host)
    connected = await connect_port(shared, "one", port)
    assert not os.get_blocking(connected.fileno()), "an event loop uses it"
    assert said(connected) == b"inside word"


async def test_the_socket_is_of_the_sandboxs_network_and_the_hosts_port_is_out_of_reach(shared: Node, client: NodeClient) -> None:
    one, two = await client.create("one"), await client.create("two")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with pytest.raises(RefusedError, match="port_unreachable"):
            await connect_port(shared, "one", port)
        for box, name in ((one, "one"), (two, "two")):
            await serve_inside(box["endpoint"], port)
            connected = await connect_port(shared, name, port)
            assert netns_cookie(connected) != netns_cookie(outside)
            assert said(connected) == b"inside word"
        outside.setblocking(False)
        with pytest.raises(BlockingIOError):
            outside.accept()


async def test_the_zygote_is_back_in_its_own_network_and_forks_as_before(shared: Node, client: NodeClient) -> None:
    box = await client.create("one")
    port = await serve_inside(box["endpoint"])
    (zygote,) = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == shared.pid and in_our_pid_namespace(pid)]
    own = os.readlink(f"/proc/{zygote}/ns/net")
    for _ in range(3):
        (await connect_port(shared, "one", port)).close()
    assert os.readlink(f"/proc/{zygote}/ns/net") == own
    two = await client.create("two")
    with pytest.raises(RefusedError, match="port_unreachable"):
        await connect_port(shared, "two", port)
    inside = "import os; result = os.readlink('/proc/self/ns/net')"
    networks = {await ask(each["endpoint"], "python", script=inside) for each in (box, two)}
    assert len(networks | {own, os.readlink("/proc/self/ns/net")}) == 4


async def test_what_cannot_be_connected_to_is_refused(shared: Node, client: NodeClient) -> None:
    box = await client.create("one")
    port = await serve_inside(box["endpoint"])
    for name, incarnation in (("two", INCARNATION), ("one", "f" * 16)):
        with pytest.raises(RefusedError, match="sandbox_not_found"):
            await connect_port(shared, name, port, incarnation)
    for wrong in (0, -1, 65536, "80", True, None):
        with pytest.raises(RefusedError, match="invalid_argument"):
            await connect_port(shared, "one", wrong)
    with pytest.raises(RefusedError, match="port_unreachable"):
        await connect_port(shared, "one", free_port())
    await client.call("delete", sandbox_id="one")
    with pytest.raises(RefusedError, match="sandbox_not_found"):
        await connect_port(shared, "one", port)


async def test_a_connection_ends_with_its_sandbox(shared: Node, client: NodeClient) -> None:
    box = await client.create("one")
    port = await serve_inside(box["endpoint"])
    connected = await connect_port(shared, "one", port)
    await client.call("delete", sandbox_id="one")
    with connected:
        connected.settimeout(DEADLINE_S)
        try:
            assert connected.recv(100) == b""
        except ConnectionError:
            pass


async def test_no_descriptor_is_left_in_the_node(shared: Node, client: NodeClient) -> None:
    box = await client.create("one")
    port = await serve_inside(box["endpoint"])
    (await connect_port(shared, "one", port)).close()
    before = len(list(Path(f"/proc/{shared.pid}/fd").iterdir()))
    for _ in range(20):
        (await connect_port(shared, "one", port)).close()
        with pytest.raises(RefusedError):
            await connect_port(shared, "one", free_port())
    after = len(list(Path(f"/proc/{shared.pid}/fd").iterdir()))
    assert after < before + 20, "one of each connection would be twenty; spares have some"


def parent(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def in_our_pid_namespace(pid: str) -> bool:
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/pid"), os.stat("/proc/self/ns/pid"))
