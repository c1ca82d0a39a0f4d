"""verifiers' own runtime contract on ``HoldfastRuntime``, and a rollout of its default harness machinery that borrows one."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator, Callable

import pytest
import verifiers.v1 as vf
from holdfast import SandboxClient
from holdfast.integrations.verifiers import HoldfastRuntime
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import SubprocessConfig, make_runtime

REFERENCE = os.environ.get("HOLDFAST_REFERENCE") == "subprocess"


def fetched(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as answer:
        status: int = answer.status
        return status


@pytest.fixture
async def runtime() -> AsyncIterator[vf.Runtime]:
    made = make_runtime(SubprocessConfig()) if REFERENCE else HoldfastRuntime("host")
    await made.start()
    yield made
    await made.stop()


async def test_a_program_runs_to_its_end(runtime: vf.Runtime) -> None:
    result = await runtime.run(["sh", "-c", 'echo "$A"; echo low >&2; exit 3'], {"A": "b c"})
    assert (result.exit_code, result.stdout, result.stderr) == (3, "b c\n", "low\n")
    view = runtime.with_env({"A": "of the task"})
    assert (await view.run(["sh", "-c", 'echo "$A"'], {})).stdout == "of the task\n"
    assert await runtime.alive()


async def test_files(runtime: vf.Runtime) -> None:
    await runtime.write("a/b", bytes(range(256)))
    assert await runtime.read("a/b") == bytes(range(256))
    assert await runtime.read("a/b", max_bytes=256) == bytes(range(256))
    with pytest.raises(SandboxError):
        await runtime.read("a/b", max_bytes=255)


async def test_a_missing_file_is_the_error_of_verifiers(runtime: vf.Runtime) -> None:
    with pytest.raises((SandboxError, FileNotFoundError)):
        await runtime.read("missing")


async def test_a_live_process(runtime: vf.Runtime) -> None:
    process = await runtime.open_process(["sh", "-c", "read line; echo got $line; echo low >&2; exec sleep 60"], {})
    assert await process.poll() is None
    await process.write(b"text\n")
    assert await anext(aiter(process.stdout)) == b"got text\n"
    assert await anext(aiter(process.stderr)) == b"low\n"
    await process.terminate()
    assert await process.wait() in (143, -15)


async def test_a_server_in_the_background_is_exposed(runtime: vf.Runtime) -> None:
    await runtime.run_background(["python3", "-m", "http.server", "8765", "--bind", "127.0.0.1"], {}, "server.log")
    wait = "for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/8765) 2>/dev/null && exit; sleep 0.1; done; exit 1"
    assert (await runtime.run(["bash", "-c", wait], {})).exit_code == 0
    assert await asyncio.to_thread(fetched, f"{await runtime.expose(8765)}/") == 200


@pytest.mark.skipif(REFERENCE, reason="the reference runs as the caller")
async def test_another_user() -> None:
    made = HoldfastRuntime("host")
    await made.start()
    try:
        assert (await made.with_user("nobody").run(["id", "-u"], {})).stdout == "65534\n"
    finally:
        await made.stop()


@pytest.mark.skipif(REFERENCE, reason="has no service that could lose it")
async def test_a_lost_sandbox_is_infrastructure_and_stop_leaves_nothing(client: SandboxClient) -> None:
    made = HoldfastRuntime("host", labels={"test": "lost"})
    await made.start()
    (record,) = await asyncio.to_thread(client.list_sandboxes, {"test": "lost"})
    await asyncio.to_thread(client.get_sandbox(record.sandbox_id).delete)
    with pytest.raises(SandboxError):
        await made.run(["true"], {})
    assert not await made.alive()
    await made.stop()
    assert await asyncio.to_thread(client.list_sandboxes, {"test": "lost"}) == []


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("verifiers.md")
