"""How many connections one address may hold open on which no request had a valid API key.

Owns the count for each address and which connection is closed when there are too many: the one that has been unused longest, never one
whose request is being served. A connection counts until a request on it has a valid key, so a client with a key is not limited here, and
many that connect at the same moment are not refused: only connections that are older than a moment are closed. The connections of trusted
proxies do not count, because one connection carries the requests of many clients. Called by ``bounded_protocol``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, Protocol

_YOUNG_S: Final = 1.0
"""A connection that is younger than this may be about to send its request."""
_YOUNG: Final = 16
"""How many times the limit may be exceeded by connections that are young."""

Network = IPv4Network | IPv6Network


class Connection(Protocol):
    """What is counted."""

    def evict(self) -> bool:
        """Close it, unless a request on it is being served. True if it was closed."""
        ...


class ConnectionLimits:
    """One per server. ``limit``: most connections of one address without a valid key; 0 for no limit."""

    def __init__(self, limit: int = 0, trusted_proxies: Sequence[Network] = (), clock: Callable[[], float] | None = None) -> None:
        self._limit = limit
        self._trusted = tuple(trusted_proxies)
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._of_address: dict[str, dict[Connection, float]] = {}
        """For each address its connections with the time of their start, the oldest first."""
        self.evicted = 0
        self.refused = 0

    def enter(self, connection: Connection, address: str) -> bool:
        """Count a connection of ``address_of`` its peer. False if it is to be refused."""
        if not address:
            return True
        found = self._of_address.setdefault(address, {})
        found[connection] = self._clock()
        if len(found) <= self._limit:
            return True
        latest = self._clock() - _YOUNG_S
        for one, since in found.items():
            if since > latest:
                break
            if one.evict():
                self.evicted += 1
                self.leave(one, address)
                return True
        if len(found) <= _YOUNG * self._limit:
            return True
        self.refused += 1
        self.leave(connection, address)
        return False

    def leave(self, connection: Connection, address: str) -> None:
        """The connection ended, or a request on it had a valid key. No effect on one that is not counted."""
        found = self._of_address.get(address)
        if found is not None:
            found.pop(connection, None)
            if not found:
                del self._of_address[address]

    def address_of(self, host: str | None) -> str:
        """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits. Empty for what is not limited.

        ``host`` is None for a Unix socket.
        """
        if not self._limit or not host:
            return ""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._trusted):
            return ""
        return str(address) if address.version == 4 else str(IPv6Network((int(address) >> 64 << 64, 64)))
