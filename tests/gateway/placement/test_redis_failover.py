"""A Redis that fails over: the store continues with the new primary, however the former one treats its open connections.

Real servers: a primary, its replica, a forwarder as the address of a managed Redis, and a Sentinel. The field reports: redis/redis-py#460
and #435, OpenZeppelin/openzeppelin-relayer#813, redisson/redisson#241, StackExchange/StackExchange.Redis#2264.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from holdfast_server.redis import find_redis_server

from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.conformance.placement import spec
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.until import until, until_async

pytestmark = requires("redis")

AT_ONCE = 8
"""Connections that are open to the former primary."""
LIMIT_S = 2.0
"""Within this time after the failover a create must work."""
_SYNC_AT_ONCE = "repl-diskless-sync-delay 0"


class Server:
    """One redis-server on a port of its own."""

    def __init__(self, folder: Path, *options: str, sentinel: bool = False) -> None:
        program = find_redis_server()
        assert program is not None
        self.port = _free_port()
        home = folder / str(self.port)
        home.mkdir()
        settings = home / "redis.conf"  # a Sentinel writes its settings
        settings.write_text("\n".join([f"port {self.port}", "bind 127.0.0.1", f"dir {home}", *options]))
        mode = ["--sentinel"] if sentinel else ["--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([program, str(settings), *mode], stdout=subprocess.DEVNULL)
        self.direct: Any = redis.Redis(port=self.port)
        until(self._answers, deadline_s=60, what=f"the server on port {self.port}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def end(self) -> None:
        self.direct.close()
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.direct.ping())
        return False


class Forwarder:
    """An address whose new connections lead to ``target``; open ones stay with the server they lead to, as after a change of DNS."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.opened = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, far_writer))
                    group.create_task(_copy(far_reader, writer))
            finally:
                far_writer.close()
        except (asyncio.CancelledError, ExceptionGroup, OSError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hf-failover-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def pair(folder: Path) -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, which has its data."""
    servers = Server(folder, _SYNC_AT_ONCE), Server(folder)
    try:
        servers[1].direct.replicaof("127.0.0.1", str(servers[0].port))
        until(lambda: _follows(*servers), deadline_s=60, what="the replica")
        yield servers
    finally:
        for server in servers:
            server.end()


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[PlacementStore]:
    store = PlacementStore(PlacementSettings(redis_url=url))
    try:
        yield store
    finally:
        await store.aclose()


def demoted(old: Server, new: Server) -> None:
    new.direct.replicaof("NO", "ONE")
    old.direct.replicaof("127.0.0.1", str(new.port))


def without_master(old: Server, new: Server) -> None:
    new.direct.replicaof("NO", "ONE")
    old.direct.config_set("replica-serve-stale-data", "no")
    old.direct.replicaof("127.0.0.1", "1")


def without_replicas(old: Server, new: Server) -> None:
    new.direct.replicaof("NO", "ONE")
    old.direct.config_set("min-replicas-to-write", "1")
    until(lambda: old.direct.info("replication")["connected_slaves"] == 0, deadline_s=60, what="the replica to leave")


def silent(old: Server, new: Server) -> None:
    new.direct.replicaof("NO", "ONE")
    os.kill(old.process.pid, signal.SIGSTOP)


@pytest.mark.parametrize("failover", [demoted, without_master, without_replicas, silent])
async def test_creates_work_as_soon_as_the_address_leads_to_the_new_primary(
    pair: tuple[Server, Server], failover: Callable[[Server, Server], None]
) -> None:
    old, new = pair
    async with Forwarder(old.port) as address, opened(f"redis://127.0.0.1:{address.port}/0") as store:
        await asyncio.gather(*(store.create(spec(f"sb-{number}"), fingerprint="f") for number in range(AT_ONCE)))
        await until_async(lambda: _agree(old, new), deadline_s=60, what="the replica to have all")
        before = address.opened
        assert before >= AT_ONCE // 2
        address.target = new.port
        await asyncio.to_thread(failover, old, new)
        with Stopwatch() as watch:
            await _created(store, "sb-after")
        assert watch.elapsed_s < LIMIT_S
        await asyncio.gather(*(store.create(spec(f"sb-later-{number}"), fingerprint="f") for number in range(AT_ONCE)))
        kept = [f"sb-{number}" for number in range(AT_ONCE)]
        assert len(await store.records(["sb-after", *kept])) == AT_ONCE + 1
        assert address.opened <= before * 3


async def test_nothing_is_read_from_a_former_primary_once_a_write_was_refused(pair: tuple[Server, Server]) -> None:
    """A demoted server still answers reads, and does not know what its successor has."""
    old, new = pair
    async with Forwarder(old.port) as address, opened(f"redis://127.0.0.1:{address.port}/0") as store:
        await asyncio.gather(*(store.create(spec(f"sb-{number}"), fingerprint="f") for number in range(AT_ONCE)))
        address.target = new.port
        await until_async(lambda: _agree(old, new), deadline_s=60, what="the replica to have all")
        new.direct.replicaof("NO", "ONE")
        old.direct.replicaof("127.0.0.1", "1")
        await store.create(spec("sb-after"), fingerprint="f")
        found = await asyncio.gather(*(store.get("sb-after") for _ in range(AT_ONCE)))
        assert all(found)


async def test_a_primary_without_a_successor_answers_reads_and_refuses_writes(pair: tuple[Server, Server]) -> None:
    old, _ = pair
    async with opened(f"redis://127.0.0.1:{old.port}/0") as store:
        await store.create(spec("sb-1"), fingerprint="f")
        old.direct.replicaof("127.0.0.1", "1")
        with pytest.raises(PlacementUnavailableError, match="READONLY"):
            await store.create(spec("sb-2"), fingerprint="f")
        assert await store.get("sb-1") is not None


@pytest.mark.parametrize("killed", [False, True], ids=["orderly", "killed"])
async def test_sentinels_name_the_primary(pair: tuple[Server, Server], folder: Path, killed: bool) -> None:
    old, new = pair
    monitor = f"sentinel monitor main 127.0.0.1 {old.port} 1"
    sentinel = Server(folder, monitor, "sentinel down-after-milliseconds main 500", sentinel=True)
    try:
        until(lambda: sentinel.direct.sentinel_master("main")["num-slaves"] == 1, deadline_s=60, what="the Sentinel")
        # The first one does not exist: the others are asked.
        async with opened(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main/0") as store:
            await asyncio.gather(*(store.create(spec(f"sb-{number}"), fingerprint="f") for number in range(AT_ONCE)))
            await until_async(lambda: _agree(old, new), deadline_s=60, what="the replica to have all")
            if killed:
                old.kill()
            else:
                await until_async(lambda: _fails_over(sentinel), deadline_s=60, what="the Sentinel to know the replica's state")
            await until_async(lambda: _leads(sentinel, new), deadline_s=60, what="the failover")
            with Stopwatch() as watch:
                await _created(store, "sb-after")
            assert watch.elapsed_s < LIMIT_S
            assert await store.get("sb-0") is not None
    finally:
        sentinel.end()


@pytest.mark.parametrize("url", ["redis+sentinel://host:26379", "redis+sentinel:///main", "redis+sentinel://host/main/x", "http://host"])
def test_a_wrong_url_is_refused_with_the_name_of_the_setting(url: str) -> None:
    with pytest.raises(ValueError, match="HOLDFAST_REDIS_URL"):
        PlacementStore(PlacementSettings(redis_url=url))


async def _created(store: PlacementStore, sandbox_id: str) -> None:
    """As a client does: a create that is answered with 503 is sent again."""

    async def created() -> bool:
        with contextlib.suppress(PlacementUnavailableError):
            await store.create(spec(sandbox_id), fingerprint="f")
            return True
        return False

    await until_async(created, deadline_s=60, what="a create")


def _follows(primary: Server, replica: Server) -> bool:
    return bool(replica.direct.info("replication")["master_link_status"] == "up") and _agree(primary, replica)


def _agree(primary: Server, replica: Server) -> bool:
    return bool(primary.direct.info("replication")["master_repl_offset"] == replica.direct.info("replication").get("slave_repl_offset"))


def _fails_over(sentinel: Server) -> bool:
    with contextlib.suppress(redis.ResponseError):  # it has not asked the replica yet
        sentinel.direct.execute_command("SENTINEL", "FAILOVER", "main")
        return True
    return False


def _leads(sentinel: Server, server: Server) -> bool:
    address = sentinel.direct.sentinel_get_master_addr_by_name("main")
    return address is not None and address[1] == server.port and server.direct.info("replication")["role"] == "master"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
