"""``holdfast mcp`` with the official client, over standard streams and over streamable HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import SandboxClient
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

COMMAND = [str(Path(sys.executable).with_name("holdfast")), "mcp"]
PROMPT_S = 60.0


@asynccontextmanager
async def connected(*options: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options], env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def test_lists_nine_tools_without_creating_a_sandbox(client: SandboxClient) -> None:
    before = {info.sandbox_id for info in client.list_sandboxes()}
    async with connected() as server:
        tools = (await server.list_tools()).tools
        assert {tool.name for tool in tools} == {"run", "shell", "read", "write", "edit", "list", "search", "patch", "ports"}
        assert all(tool.description for tool in tools)
        assert {info.sandbox_id for info in client.list_sandboxes()} == before


async def test_runs_commands_and_a_shell_that_keeps_its_state() -> None:
    async with connected() as server:
        ran = await call(server, "run", command="echo out; echo err >&2; exit 3")
        assert text(ran) == "out\nerr\n[exit code 3]"
        assert ran.structured_content == {"output": "out\nerr\n", "exit_code": 3, "timed_out": False, "truncated": False, "cwd": None}
        assert text(await call(server, "run", command="cat", stdin="in")) == "in"
        await call(server, "shell", command="cd /tmp && X=7")
        kept = await call(server, "shell", command="echo a; echo b >&2; echo $X")
        assert (text(kept), kept.structured_content["cwd"]) == ("a\nb\n7\n", "/tmp")
        late = await call(server, "shell", command="echo begun; sleep 60", timeout_s=0.5)
        assert late.structured_content["timed_out"]
        assert text(late).startswith("begun\n[timed out")
        assert text(await call(server, "shell", command="echo $X")) == "7\n"


async def test_works_with_files() -> None:
    async with connected() as server:
        await call(server, "write", path="/tmp/w/a.txt", content="one\ntwo\nthree\n")
        assert text(await call(server, "read", path="/tmp/w/a.txt", first_line=2, lines=1)) == "two\n"
        assert "replaced 1 " in text(await call(server, "edit", path="/tmp/w/a.txt", old="two", new="2"))
        refused = await server.call_tool("edit", {"path": "/tmp/w/a.txt", "old": "e", "new": "x"})
        assert refused.is_error
        assert "occurs 3 times" in text(refused)
        assert "/tmp/w/a.txt" in text(await call(server, "list", path="/tmp/w"))
        assert text(await call(server, "search", pattern="three", path="/tmp/w")) == "/tmp/w/a.txt:3:three"
        diff = "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n-one\n+1\n 2\n three\n"
        await call(server, "patch", diff=diff, cwd="/tmp/w")
        assert text(await call(server, "read", path="/tmp/w/a.txt")) == "1\n2\nthree\n"
        assert (await server.call_tool("patch", {"diff": diff, "cwd": "/tmp/w"})).is_error
        missing = await server.call_tool("read", {"path": "/no"})
        assert missing.is_error
        assert "/no" in text(missing)


async def test_lists_ports_and_links_to_them() -> None:
    async with connected() as server:
        await call(server, "run", command="python3 -m http.server 8123 >/dev/null 2>&1 &")
        end = time.monotonic() + PROMPT_S
        while "8123" not in (listed := text(await call(server, "ports"))):
            assert time.monotonic() < end, listed
        assert text(await call(server, "ports", preview=8123)).startswith("http")


async def test_deletes_its_sandbox_at_the_end_and_leaves_one_that_was_named(client: SandboxClient) -> None:
    async with connected() as server:
        name = text(await call(server, "run", command="hostname")).strip()
        assert name in {info.sandbox_id for info in client.list_sandboxes()}
    until(lambda: name not in {info.sandbox_id for info in client.list_sandboxes()})
    with client.create_sandbox("host") as sandbox:
        async with connected("--sandbox", sandbox.id) as server:
            await call(server, "write", path="/tmp/kept", content="x")
        assert sandbox.files.read_text("/tmp/kept") == "x"


async def test_serves_http_to_who_has_the_token() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "HOLDFAST_MCP_TOKEN": "secret"}
    server = subprocess.Popen([*COMMAND, "--http", f"127.0.0.1:{port}"], env=environment)
    try:
        until(lambda: _answers(port))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers={"Authorization": "Bearer secret"}) as http:
            async with Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client:
                assert text(await call(client, "run", command="echo over http")) == "over http\n"
            assert (await http.post(f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer wrong"})).status_code == 401
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PROMPT_S)


def test_refuses_to_serve_other_machines_without_a_token() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_MCP_TOKEN"}
    result = subprocess.run(
        [*COMMAND, "--http", "0.0.0.0:0"], env=environment, capture_output=True, text=True, timeout=PROMPT_S, check=False
    )
    assert result.returncode == 2
    assert "HOLDFAST_MCP_TOKEN" in result.stderr


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("mcp.md")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PROMPT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
