"""Which registries images may be pulled from, and which addresses a pull may connect to.

Owns the operator's list (``HOLDFAST_REGISTRIES``) and the check of every connection of a pull, also of redirects, after the name was
resolved: a pull must not reach what only this machine can reach. Called by ``fetch_proxy`` for each connection and by ``store`` for each
name.
"""

from __future__ import annotations

import asyncio
import fnmatch
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from holdfast_wire.errors import HoldfastError

from session_agent.node.kernel.network import own_addresses

HTTPS: Final = 443
_TRANSLATED: Final = tuple(IPv6Network(text) for text in ("64:ff9b::/96", "2002::/16", "2001::/32"))
"""Ranges whose addresses contain an IPv4 address, which may be a private one."""
_METADATA: Final = IPv4Address("168.63.129.16")
"""A public address at which a cloud serves only its own machines."""
_HINT: Final = "import the image with `holdfast image import`, or ask the operator to list the registry in HOLDFAST_REGISTRIES"


class RefusedError(Exception):
    """A connection that a pull may not make. The message never says whether anything answers there."""


@dataclass(frozen=True, slots=True)
class Registries:
    """``entries``: ``host``, ``host:port`` or a pattern such as ``*.example.com``, which may have private addresses, since the operator
    named them; and ``*``, every registry with public addresses at port 443."""

    entries: tuple[str, ...] = ("*",)

    def check(self, name: str) -> None:
        """Refuse the full name of an image whose registry is not listed. Raises HoldfastError(invalid_argument)."""
        registry = name.partition("/")[0]
        host, port = split(registry)
        if not self.names(host, port) and ("*" not in self.entries or port != HTTPS):
            raise HoldfastError("invalid_argument", f"images may not be pulled from {registry} here", hint=_HINT)

    def names(self, host: str, port: int) -> bool:
        """Whether the operator has named this host."""
        return any(
            fnmatch.fnmatchcase(host.lower(), entry_host.lower()) and port == entry_port
            for entry_host, entry_port in (split(entry) for entry in self.entries if entry != "*")
        )

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of ``host`` that a pull may connect to. Raises RefusedError, and OSError if the name has none."""
        named = self.names(host, port)
        if not named and port != HTTPS:
            raise RefusedError(f"pulls may not connect to {host}:{port}")
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not named:
            addresses = [address for address in addresses if is_public(address)]
            if not addresses:
                raise RefusedError(f"{host} has no public address")
        return addresses


def parse(text: str) -> Registries:
    """The list in a setting. Raises ValueError."""
    entries = tuple(part.strip() for part in text.split(",") if part.strip())
    for entry in entries:
        host, _ = split(entry)
        if not host or any(c.isspace() or c in "/@?" for c in entry):
            raise ValueError(f"HOLDFAST_REGISTRIES must list hosts such as docker.io or registry.internal:5000, not {entry[:80]!r}")
    return Registries(entries) if entries else Registries()


def split(registry: str) -> tuple[str, int]:
    """Host and port of a registry. Raises ValueError for a port that is no number."""
    host, colon, port = registry.rpartition(":")
    if not colon or registry.endswith("]"):
        return registry.strip("[]"), HTTPS
    return host.strip("[]"), int(port)


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet: not to a private network, a link, a cloud's own services, or this machine."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in network for network in _TRANSLATED):
            return False
    if not found.is_global or found.is_multicast or found.is_reserved or found == _METADATA:
        return False
    return not any(found == ip_network(own).network_address for own in own_addresses())
