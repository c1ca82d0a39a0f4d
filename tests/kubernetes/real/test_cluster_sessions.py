"""Living shells in pods of a real cluster, through SDK and gateway: the shell-behaviour suite in two images, a hundred pods, the network.

Run by `make test-cluster`. The gateway runs where pytest runs and connects to pods by their addresses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast import (
    AsyncSandbox,
    AsyncSandboxClient,
    HoldfastError,
    InvalidArgumentError,
    QuotaError,
    Sandbox,
    SandboxClient,
    ServiceUnavailableError,
    UnsupportedError,
)

from tests.e2e.test_shell_suite import test_case as shell_case
from tests.kubernetes.real.cluster import DEBIAN, IMAGE, OUTSIDE, namespace
from tests.kubernetes.stack import ClusterStack, cluster_stack
from tests.support.requires import requires
from tests.support.shell_cases import CASES, Case

pytestmark = [pytest.mark.cluster, requires("cluster", "redis"), pytest.mark.timeout(600)]

SMALL = {"cpu": 1, "memory": "256Mi", "ready_timeout_s": 120}
MANY, AT_ONCE = 100, 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterStack]:
    folder: Path = tmp_path_factory.mktemp("stack")
    async with namespace() as settings:
        entered = await asyncio.to_thread((manager := cluster_stack(folder, settings)).__enter__)
        try:
            yield entered
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)


@pytest.fixture(scope="module")
def sandboxes(stack: ClusterStack) -> Iterator[dict[str, Sandbox]]:
    """One sandbox per image, shared by all shell cases."""
    with SandboxClient(stack.url, stack.key) as client:
        made = {image: client.create_sandbox(image, **SMALL) for image in (IMAGE, DEBIAN)}  # type: ignore[arg-type]
        yield made
        for sandbox in made.values():
            sandbox.delete()


EXCLUDED = {("busybox", "private descriptors are closed")}
"""The `ls` of busybox is built into its shell, so no exec closes the descriptors that programs must not see."""
_PARAMS = [
    pytest.param(image, case, shell, id=f"{name}-{case.name}-{shell}")
    for name, image, shells in (("busybox", IMAGE, ("sh",)), ("debian", DEBIAN, ("bash", "sh")))
    for case in CASES
    for shell in case.shells
    if shell in shells and (name, case.name) not in EXCLUDED
]


@pytest.mark.parametrize(("image", "case", "shell"), _PARAMS)
def test_shell_behaviour(sandboxes: dict[str, Sandbox], image: str, case: Case, shell: str) -> None:
    shell_case(sandboxes[image], case, shell)


@pytest_asyncio.fixture
async def client(stack: ClusterStack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as made:
        yield made


async def test_a_hundred_pods_from_create_to_delete(client: AsyncSandboxClient) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    ready: list[float] = []

    async def episode(number: int) -> None:
        async with gate:
            began = time.monotonic()
            async with await client.create_sandbox(IMAGE, cpu="100m", memory="64Mi", ready_timeout_s=240) as sandbox:
                ready.append(time.monotonic() - began)
                async with await sandbox.shell() as shell:
                    assert (await shell.run(f"cd /tmp && X={number}")).exit_code == 0
                    assert (await shell.run("echo $X:$PWD")).stdout == f"{number}:/tmp\n"
                    assert (await shell.run("seq 1 10000 | tail -n 1")).stdout == "10000\n"
                assert (await sandbox.exec(["echo", "bye"])).stdout == "bye\n"

    began = time.monotonic()
    results = await asyncio.gather(*(episode(number) for number in range(MANY)), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    ready.sort()
    took = time.monotonic() - began
    print(f"\n{MANY - len(failed)}/{MANY} in {took:.0f} s, {AT_ONCE} at once; p50 {ready[len(ready) // 2]:.1f} s, last {ready[-1]:.1f} s")
    assert not failed, failed[:3]


async def test_the_network_of_a_running_sandbox_changes(client: AsyncSandboxClient) -> None:
    if not OUTSIDE:
        pytest.skip("HOLDFAST_TEST_OUTSIDE names no address of this machine that pods are routed to")
    server = await asyncio.start_server(_hello, OUTSIDE, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, await client.create_sandbox(IMAGE, **SMALL) as sandbox:  # type: ignore[arg-type]

        async def reaches() -> bool:
            return "hello" in (await sandbox.exec(f"nc -w 2 {OUTSIDE} {port} </dev/null", timeout=20)).stdout

        async def until(wanted: bool) -> float:
            began = time.monotonic()
            async with asyncio.timeout(30):
                while await reaches() != wanted:
                    pass
            return time.monotonic() - began

        assert not await reaches()
        info = await sandbox.change_network({"reaches": [{"cidr": f"{OUTSIDE}/32", "ports": [port]}]})
        assert info.network["mode"] == "listed"
        opened_s = await until(True)
        await sandbox.change_network({"reaches": [{"cidr": f"{OUTSIDE}/32", "ports": [port + 1]}]})
        narrowed_s = await until(False)
        await sandbox.change_network({"mode": "internet", "reaches": [{"cidr": f"{OUTSIDE}/32"}]})
        again_s = await until(True)
        await sandbox.change_network({"mode": "none"})
        closed_s = await until(False)
        print(f"\nin effect after {opened_s:.1f}, {narrowed_s:.1f}, {again_s:.1f} and {closed_s:.1f} s")
        with pytest.raises(UnsupportedError):
            await sandbox.change_network({"domains": ["pypi.org"]})
        with pytest.raises(InvalidArgumentError):
            await sandbox.change_network({"reaches": [{"cidr": "169.254.169.254/32"}]})


async def _hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    writer.close()


async def test_failures_are_typed(client: AsyncSandboxClient) -> None:
    for more, kind, reason in (
        ({"image": "127.0.0.1:1/none:1"}, HoldfastError, "image-pull"),
        ({"image": IMAGE, "cpu": 4000, "memory": "64Mi"}, InvalidArgumentError, None),
        ({"image": IMAGE, "node_selector": {"no-such": "node"}}, ServiceUnavailableError, "unschedulable"),
        ({"image": IMAGE, "network": {"domains": ["pypi.org"]}}, UnsupportedError, None),
        ({"image": IMAGE, "priority_class": "system-node-critical"}, UnsupportedError, None),
        ({"image": IMAGE, "runtime_class": "privileged"}, UnsupportedError, None),
        ({"image": IMAGE, "tolerations": [{"operator": "Exists"}]}, UnsupportedError, None),
    ):
        began = time.monotonic()
        with pytest.raises(kind) as caught:
            await client.create_sandbox(**{**SMALL, **more, "ready_timeout_s": 60})  # type: ignore[arg-type]
        assert time.monotonic() - began < 20
        print(f"\n{caught.value.code} {caught.value.reason} after {time.monotonic() - began:.1f} s: {caught.value.message[:120]}")
        assert not isinstance(caught.value, QuotaError)
        assert caught.value.reason == reason


async def test_a_command_that_exceeds_its_memory_gets_oom_and_the_sandbox_lives_or_reports_it(client: AsyncSandboxClient) -> None:
    sandbox: AsyncSandbox
    async with await client.create_sandbox(DEBIAN, cpu=1, memory="96Mi", ready_timeout_s=60) as sandbox:
        try:
            result = await sandbox.exec(["sh", "-c", "x=$(head -c 400000000 /dev/zero | tr '\\0' x); echo ${#x}"], timeout=60)
            print(f"\nexit {result.exit_code}, signal {result.signal}, cause {result.cause}")
            assert result.exit_code == 137
            assert result.cause is not None, "the kernel counts it in every container: memory.events or memory.oom_control"
            assert (result.cause.reason, result.cause.fault) == ("oom", "workload")
            assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        except HoldfastError as lost:
            print(f"\n{lost.code} {lost.reason}: {lost.message}")
            if lost.reason != "oom":
                raise
