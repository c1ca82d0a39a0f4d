"""The limit of connections without a valid key, for each address."""

from __future__ import annotations

import asyncio
import contextlib
from ipaddress import ip_network
from pathlib import Path

import pytest

from gateway.http import connections
from gateway.http.connections import ConnectionLimits
from gateway.settings import ConnectionSettings, from_environment
from tests.gateway.harness import ADA, DEADLINE_S, ScriptedAgent, Served, echo, serve
from tests.support.requires import requires


class Counted:
    """A connection that is closed unless it serves a request."""

    def __init__(self, *, serves: bool = False) -> None:
        self.serves = serves
        self.closed = False

    def evict(self) -> bool:
        self.closed = not self.serves
        return self.closed


def test_the_connection_that_was_unused_longest_is_closed() -> None:
    now = 0.0
    limits = ConnectionLimits(3, clock=lambda: now)
    busy, old, middle, new = Counted(serves=True), Counted(), Counted(), Counted()
    for one in (busy, old, middle, new):
        now += 10.0
        assert limits.enter(one, "192.0.2.1")
    assert [one.closed for one in (busy, old, middle, new)] == [False, True, False, False]
    assert limits.enter(Counted(), "192.0.2.2")
    assert not middle.closed, "each address has its own limit"


def test_a_burst_of_new_connections_is_not_refused_until_it_is_far_above_the_limit() -> None:
    limits = ConnectionLimits(4, clock=lambda: 1.0)
    burst = [Counted() for _ in range(65)]
    assert [limits.enter(one, "192.0.2.1") for one in burst] == [True] * 64 + [False]
    assert not any(one.closed for one in burst)
    for one in burst[:-1]:
        limits.leave(one, "192.0.2.1")
    assert not limits._of_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2:3", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("10.1.2.3", ""),
        ("2001:db8:1::9", ""),
        ("not an address", ""),
        (None, ""),
    ],
)
def test_what_counts_as_one_address(host: str | None, address: str) -> None:
    limits = ConnectionLimits(1, (ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48")))
    assert limits.address_of(host) == address
    assert ConnectionLimits(0).address_of(host) == ""


def test_the_settings_are_read_from_the_environment() -> None:
    settings = from_environment({"HOLDFAST_CONNECTIONS_PER_ADDRESS": "7", "HOLDFAST_TRUSTED_PROXIES": "10.0.0.0/8, ::1"})
    assert settings.connections == ConnectionSettings(7, (ip_network("10.0.0.0/8"), ip_network("::1")))
    with pytest.raises(ValueError, match="HOLDFAST_TRUSTED_PROXIES"):
        from_environment({"HOLDFAST_TRUSTED_PROXIES": "10.0.0.1/8"})


async def _ask(served: Served, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(f"GET /sandboxes HTTP/1.1\r\nHost: x\r\n{f'X-API-Key: {key}' if key else 'X: x'}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return reader, writer


@requires("redis")
async def test_only_connections_without_a_valid_key_are_closed(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG_S", 0.0)
    async with (
        serve(redis_url, tmp_path, connections=ConnectionSettings(per_address=4)) as served,
        ScriptedAgent(echo) as agent,
        asyncio.timeout(DEADLINE_S),
    ):
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as session:
            with_key = [await _ask(served, ADA) for _ in range(8)]
            without = [await _ask(served, key) for key in ("", "wrong", "", "", "", "")]
            for reader, _ in without[:2]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            for reader, writer in (*with_key, *without[2:]):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await session.send(b"still there")
            assert await session.recv() == b"still there"
            for _, writer in (*with_key, *without):
                writer.transport.abort()
