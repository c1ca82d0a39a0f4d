"""Connections to ports inside sandboxes that are made outside: the node gives the socket to a gateway, which speaks to the port itself.

Owns where such a socket may lead: to a loopback address in the network namespace of the sandbox's first process, never in the node's own.
The sandbox has no copy of the socket, so it cannot change how reads and writes of it behave. Called by sandboxes.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from holdfast_wire.errors import HoldfastError

from session_agent.node.containers import Container
from session_agent.node.zygote.launcher import Launcher

CONNECT_S: Final = 10.0
"""Longest time a connection may take to be made."""
_BUFFER_BYTES: Final = 128 * 1024
"""Of the kernel's memory in each direction, half of which are bytes: no control group of the sandbox counts what its programs send here."""
_LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Some servers listen on only one of them."""


async def connect(container: Container, launcher: Launcher, port: int) -> socket.socket:
    """A socket that a program on *port* of the sandbox has accepted.

    Raises HoldfastError(sandbox_not_found, port_unreachable, no_capacity, runtime_unavailable).
    """
    network = _network_of(container)
    try:
        failure: Exception | None = None
        for family, host in _LOOPBACK:
            try:
                made = await launcher.make_socket(network, family)
                return await _connected(made, host, port)
            except OSError as error:  # TimeoutError is one
                failure = failure or error
    finally:
        os.close(network)
    raise HoldfastError("port_unreachable", f"port {port} of the sandbox cannot be reached: {failure}")


async def _connected(made: socket.socket, host: str, port: int) -> socket.socket:
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(made, (host, port))
    except BaseException:
        made.close()
        raise
    return made


def _network_of(container: Container) -> int:
    """An open descriptor of the network namespace of the container's first process. Raises HoldfastError(sandbox_not_found)."""
    try:
        if container.pidfd < 0:  # it was reaped, and another process may have its number
            raise ProcessLookupError
        network = os.open(f"/proc/{container.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HoldfastError("sandbox_not_found", f"the network of the sandbox cannot be entered: {error}") from None
    if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
        os.close(network)
        raise HoldfastError("sandbox_not_found", "the sandbox has no network of its own")
    return network
