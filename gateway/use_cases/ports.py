"""The TCP ports on which programs in a sandbox listen, as its kernel lists them.

Owns the reading of ``/proc/net/tcp`` and ``tcp6`` through the sandbox's agent, which works in every image. What the agent sends is its
claim: it is checked for its form. Called by faces and by ``previews``.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.records import Record

from .agent_channel import request
from .service import Gateway

_LISTENING: Final = "0A"
_FILES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a file: some twenty thousand sockets."""
_MOST: Final = 1000
_TRIED: Final = ("127.0.0.1", "::1", "0.0.0.0", "::")
"""Where a tunnel reaches a program without the name of a host."""


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """``address`` is where a program listens, ``0.0.0.0`` and ``::`` for all addresses of the sandbox. ``uid`` is of the program's user."""

    port: int
    address: str
    uid: int


async def listening(gateway: Gateway, principal: Principal, name: str) -> list[Port]:
    """The owner's sandbox's ports in order. Raises what ``Gateway.ready`` raises."""
    return await _listening(gateway, await gateway.ready(principal.owner, name))


async def address_of(gateway: Gateway, record: Record, port: int) -> str:
    """An address at which a program listens on ``port`` and a tunnel does not look by itself; "" if there is none."""
    found = [one.address for one in await _listening(gateway, record) if one.port == port]
    return next((one for one in found if one not in _TRIED), "")


async def _listening(gateway: Gateway, record: Record) -> list[Port]:
    found: set[Port] = set()
    for path in _FILES:
        content = bytearray()

        def take(data: bytes, content: bytearray = content, path: str = path) -> None:
            content.extend(data)
            if len(content) > _BYTES:
                raise HoldfastError("request_too_large", f"{path} of the sandbox has over {_BYTES} bytes")

        try:
            await request(gateway, record, "read", {"path": path, "length": _BYTES + 1}, take=take)
        except HoldfastError as error:
            if error.code != "file_not_found":  # a kernel without IPv6
                raise
        found |= parsed(content.decode("ascii", "replace"))
    return sorted(found)[:_MOST]


def parsed(table: str) -> set[Port]:
    """The listening sockets of a table in the form of ``/proc/net/tcp`` (proc(5)); lines of another form are left out."""
    found = set()
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or words[3] != _LISTENING:
            continue
        address, _, port = words[1].partition(":")
        try:
            found.add(Port(int(port, 16), _address(bytes.fromhex(address)), int(words[7])))
        except (ValueError, OSError):
            continue
    return {one for one in found if 0 < one.port < 65536 and 0 <= one.uid < 2**32}


def _address(packed: bytes) -> str:
    """The address of a table: words of four bytes in the byte order of the machine."""
    words = struct.pack(f">{len(packed) // 4}I", *struct.unpack(f"={len(packed) // 4}I", packed))
    found = ip_address(socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
