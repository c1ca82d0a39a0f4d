"""Faults on a cluster: a session survives the loss of controller, API server connection and Redis, and gets a reason when its pod ends.

Run by `make test-cluster`. The service connects to the API server through a proxy that a test can cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
import yaml
from holdfast import AsyncSandbox, AsyncSandboxClient, HoldfastError, SandboxLostError

from gateway.runtimes.kubernetes.api.client import Api
from gateway.runtimes.kubernetes.names import NAME
from tests.kubernetes.real.cluster import IMAGE, kubeconfig, namespace
from tests.kubernetes.stack import ClusterStack, cluster_stack
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = [pytest.mark.cluster, requires("cluster", "redis"), pytest.mark.timeout(400)]

SMALL = {"cpu": "100m", "memory": "64Mi", "ready_timeout_s": 60}
MODULES = ("gateway", "gateway.controller")


class Cut:
    """A proxy in front of the API server, whose connections a test can break."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.closed = False

    def cut(self) -> None:
        """Break every connection, and refuse further ones until ``closed`` is False again."""
        self.closed = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            onward, back = await asyncio.open_connection(*self._target)
            self._writers |= {writer, back}
            await asyncio.gather(self._pump(reader, back), self._pump(onward, writer))
            self._writers -= {writer, back}
        writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def cut(tmp_path: Path) -> AsyncIterator[tuple[Cut, str]]:
    """The proxy, and the path of a kubeconfig that names it as the server."""
    body = yaml.safe_load(Path(kubeconfig()).read_text())
    cluster = body["clusters"][0]["cluster"]
    target = urlsplit(cluster["server"])
    assert target.hostname is not None
    proxy = Cut(target.hostname, target.port or 443)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    cluster |= {"server": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", "tls-server-name": target.hostname}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    async with server:
        yield proxy, str(path)
        proxy.cut()


@pytest_asyncio.fixture
async def stack(cut: tuple[Cut, str], tmp_path: Path) -> AsyncIterator[ClusterStack]:
    async with namespace() as settings:
        manager = cluster_stack(tmp_path, replace(settings, kubeconfig=cut[1]))
        entered = await asyncio.to_thread(manager.__enter__)
        try:
            yield entered
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)


class ShellLoad:
    """Runs one command after another in a shell, counts them and measures the slowest."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.done = 0
        self.slowest_s = 0.0
        self._sandbox = sandbox

    async def run(self) -> None:
        async with await self._sandbox.shell() as shell:
            while True:
                began = time.monotonic()
                assert (await shell.run(f"echo {self.done}")).stdout == f"{self.done}\n"
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.done += 1

    async def more(self, count: int = 50) -> None:
        wanted = self.done + count
        await until_async(lambda: self.done >= wanted, deadline_s=60, what="further commands")


async def test_sessions_and_pods_survive_faults_of_the_service(stack: ClusterStack, cut: tuple[Cut, str]) -> None:
    proxy = cut[0]
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        sandbox = await client.create_sandbox(IMAGE, **SMALL)  # type: ignore[arg-type]
        load = ShellLoad(sandbox)
        working = asyncio.create_task(load.run(), name="commands")
        await load.more()
        faults: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
            ("controller", lambda: stack.kill("gateway.controller"), lambda: stack.spawn("gateway.controller")),
            ("API server connection", proxy.cut, lambda: setattr(proxy, "closed", False)),
            ("Redis", stack.redis.kill, stack.redis.start),
        ]
        for name, begin, end in faults:
            load.slowest_s = 0.0
            await asyncio.to_thread(begin) if name != "API server connection" else begin()
            await load.more(200)
            if name != "controller":
                with pytest.raises(HoldfastError) as caught:
                    await client.create_sandbox(IMAGE, **{**SMALL, "ready_timeout_s": 3})  # type: ignore[arg-type]
                print(f"\nwithout {name}: a create answers {caught.value.code}", end="")
            await asyncio.to_thread(end)
            began = time.monotonic()
            async with await client.create_sandbox(IMAGE, **{**SMALL, "ready_timeout_s": 120}) as another:  # type: ignore[arg-type]
                assert (await another.exec("echo back")).stdout == "back\n"
            took_s = time.monotonic() - began
            print(f"\n{name}: slowest command {load.slowest_s * 1e3:.0f} ms; back again, a create takes {took_s:.1f} s", end="")
            assert not working.done()
        await until_async(lambda: _known(stack, sandbox.id), deadline_s=60, what="the record to be rebuilt after Redis lost its data")
        api = Api(kubeconfig(), 20.0)
        pods = f"/api/v1/namespaces/{stack.settings.namespace}/pods"
        (pod,) = [one for one in (await api.get(pods))["items"] if one["metadata"]["labels"].get(NAME) == sandbox.id]
        await api.delete(f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 7})
        began = time.monotonic()
        with pytest.raises(SandboxLostError) as lost:
            await working
        print(f"\nthe pod: {lost.value.reason} ({lost.value.fault}) after {time.monotonic() - began:.1f} s and {load.done} commands")
        assert lost.value.fault == "infrastructure"
        assert lost.value.reason == "deleted", "as the API server reports it: it was not evicted"
        await until_async(lambda: _empty(api, pods), deadline_s=60, what="all sandbox pods to be gone")
        await api.aclose()


async def _known(stack: ClusterStack, sandbox_id: str) -> bool:
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, trust_env=False) as client:
        return (await client.get(f"/sandboxes/{sandbox_id}")).status_code == 200


async def _empty(api: Api, pods: str) -> bool:
    selector = {"labelSelector": "app.kubernetes.io/component=sandbox"}
    return not (await api.get(pods, selector)).get("items")
