"""The OpenAI Agents SDK's own runner with a ``SandboxAgent`` in a sandbox, its sessions, snapshots and ports.

The model is a list of tool calls.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, InvalidManifestPathError, WorkspaceArchiveWriteError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from holdfast import SandboxClient
from holdfast.integrations.openai_agents import HoldfastSandboxClient, HoldfastSandboxClientOptions
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

OPTIONS = HoldfastSandboxClientOptions(image="host")
set_tracing_disabled(True)


class Script(Model):
    """A model that makes the given tool calls one after the other, then answers with the output of the last."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = list(calls)
        self.outputs: list[str] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:  # noqa: A002
        self.outputs = [item["output"] for item in input if isinstance(item, dict) and item.get("type") == "function_call_output"]
        if self.calls:
            name, arguments = self.calls.pop(0)
            item: Any = ResponseFunctionToolCall(
                type="function_call", call_id=f"c{len(self.calls)}", name=name, arguments=json.dumps(arguments)
            )
        else:
            text = ResponseOutputText(type="output_text", text=str(self.outputs[-1]), annotations=[])
            item = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the tests do not stream")


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
        return content


@pytest.fixture
async def sandboxes() -> AsyncIterator[HoldfastSandboxClient]:
    made = HoldfastSandboxClient()
    yield made
    await made.close()


async def test_an_agent_works_in_a_sandbox_that_ends_with_the_run(sandboxes: HoldfastSandboxClient, client: SandboxClient) -> None:
    model = Script(("exec_command", {"cmd": "cat note.txt; echo $((6 * 7)) | tee answer"}), ("exec_command", {"cmd": "pwd; cat answer"}))
    agent = SandboxAgent("worker", model=model, default_manifest=Manifest(entries={"note.txt": File(content=b"from the manifest\n")}))
    before = len(await asyncio.to_thread(client.list_sandboxes))
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(client=sandboxes, options=OPTIONS)))
    assert "from the manifest\n42" in model.outputs[0]
    assert "/workspace\n42" in result.final_output
    assert len(await asyncio.to_thread(client.list_sandboxes)) == before


async def test_files_and_commands_of_a_session(sandboxes: HoldfastSandboxClient) -> None:
    manifest = Manifest(environment={"value": {"GREETING": "hello"}})
    async with await sandboxes.create(manifest=manifest, options=OPTIONS) as session:
        await session.write(Path("a/b.bin"), io.BytesIO(bytes(range(256))))
        assert (await session.read(Path("a/b.bin"))).read() == bytes(range(256))
        result = await session.exec('pwd; echo "$GREETING"; echo low >&2; exit 3')
        assert (result.stdout, result.stderr, result.exit_code) == (b"/workspace\nhello\n", b"low\n", 3)
        assert (await session.exec("id -u", user="nobody")).stdout == b"65534\n"
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("missing"))
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 987", timeout=1)
        assert (await session.exec("pgrep -fx 'sleep 987'")).exit_code == 1
        await session.exec("ln -s /etc /workspace/out")
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path("out/hostname"))
        assert await session.running()
    assert not await session.running()


async def test_a_snapshot_makes_another_sandbox_with_the_same_files(sandboxes: HoldfastSandboxClient, tmp_path: Path) -> None:
    spec = LocalSnapshotSpec(base_path=tmp_path)
    session = await sandboxes.create(snapshot=spec, options=OPTIONS)
    async with session:
        await session.exec("mkdir d; echo kept > d/f; chmod 750 d/f; ln -s f d/link")
    saved = sandboxes.serialize_session_state(session.state)
    again = await sandboxes.resume(sandboxes.deserialize_session_state(json.loads(json.dumps(saved))))
    async with again:
        assert again.state.sandbox_id != session.state.sandbox_id or not saved["sandbox_id"]
        assert (await again.exec("cat d/link; stat -c %a d/f")).stdout == b"kept\n750\n"


async def test_a_state_continues_in_its_own_sandbox_while_it_lives(sandboxes: HoldfastSandboxClient) -> None:
    session = await sandboxes.create(options=OPTIONS)
    await session.start()
    await session.exec("echo here > /tmp/outside")
    again = await sandboxes.resume(sandboxes.deserialize_session_state(sandboxes.serialize_session_state(session.state)))
    async with again:
        assert (await again.exec("cat /tmp/outside")).stdout == b"here\n"


async def test_a_hostile_archive_is_refused(sandboxes: HoldfastSandboxClient) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"))
    stream.seek(0)
    async with await sandboxes.create(options=OPTIONS) as session:
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(stream)


async def test_an_exposed_port_is_reached(sandboxes: HoldfastSandboxClient) -> None:
    options = HoldfastSandboxClientOptions(image="host", exposed_ports=(8123,))
    async with await sandboxes.create(options=options) as session:
        await session.exec("echo reached > f; nohup python3 -m http.server 8123 >/dev/null 2>&1 & for i in $(seq 100); do "
                           "(echo > /dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.1; done", shell=["bash", "-c"])  # fmt: skip
        endpoint = await session.resolve_exposed_port(8123)
        assert await asyncio.to_thread(fetched, endpoint.url_for("http") + "f") == b"reached\n"


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("openai_agents.md")
