"""Calls and argument names that users of subprocess, docker, Modal and E2B are used to, on the real stack and both APIs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import Any

import httpx
import pytest
from holdfast import (
    AsyncSandbox,
    AsyncSandboxClient,
    CancelledRemotelyError,
    InvalidArgumentError,
    PortUnreachableError,
    Sandbox,
    SandboxClient,
    SandboxLostError,
)

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def test_a_command_is_a_string_a_list_or_separate_arguments(live: Any) -> None:
    for words in (("printf '%s|' 'a b' c",), (["printf", "%s|", "a b", "c"],), ("printf", "%s|", "a b", "c")):
        assert (await live.exec(*words)).stdout == "a b|c|"
    process = await live.start("printf", "%s|", "a b", "$c")
    assert (await process.wait()).stdout == "a b|$c|"
    for wrong in ((["ls"], "-la"), ("ls", 7), ("ls", "a\0b")):
        with pytest.raises(InvalidArgumentError):
            await live.exec(*wrong)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


WRONG_TYPES: list[dict[str, Any]] = [
    *({"user": value} for value in ({"x": 1}, {(1, 2): 3}, {"x": [0] * 20_000}, nested(12), ("root",), 1.5, True)),
    *({"env": value} for value in ({"A": 1}, {1: "x"}, {"A": nested(12)}, ["A=1"])),
    *({"cwd": value} for value in (7, {"x": 1}, nested(12))),
    {"login": nested(12)},
]


async def test_values_of_wrong_types_are_refused_and_do_not_end_the_session(live: Any) -> None:
    shell = await live.shell()
    await shell.run("kept=1")
    for wrong in WRONG_TYPES:
        with pytest.raises(InvalidArgumentError):
            await live.exec("true", **wrong)
        with pytest.raises(InvalidArgumentError):
            await live.files.read("/", user=wrong.get("user", nested(12)))
        assert (await shell.run("echo $kept")).stdout == "1\n", wrong


async def test_merged_streams_keep_the_order_of_writing(live: Any) -> None:
    script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done"
    result = await live.exec(script, stderr="stdout")
    assert result.output == result.stdout == "".join(f"out {n}\nerr {n}\n" for n in (1, 2, 3))
    assert (result.stderr, result.streams[1].seen, result.truncated) == ("", len(result.output), False)
    apart = await live.exec(script)
    assert apart.output == apart.stdout + apart.stderr
    process = await live.start(["bash", "-c", script], stderr="stdout", stdin=False)
    assert {chunk.stream async for chunk in process} == {1}
    assert (await live.exec("cat; echo e >&2; exit 3", input="in\n", stderr="stdout")).output == "in\ne\n"
    with pytest.raises(InvalidArgumentError, match="stdout"):
        await live.exec("true", stderr="null")


@pytest.mark.parametrize(("keep", "kept"), [("head", "0001\n0002\n0"), ("tail", "9\n2000\n"), ("both", "0001\n")])
async def test_keep_selects_which_output_is_kept(live: Any, keep: str, kept: str) -> None:
    script = "seq -w 1 2000"
    for result in (
        await live.exec(script, max_output_bytes=11, keep=keep),
        await (await live.shell()).run(script, max_output_bytes=11, keep=keep),
        await (await live.start(script, max_output_bytes=11, keep=keep)).wait(),
    ):
        assert result.truncated
        assert len(result.stdout_bytes) == 11
        assert result.streams[1].seen == 10_000
        if keep == "head":
            assert result.stdout == kept
        elif keep == "tail":
            assert result.stdout == "\n1999\n2000\n"[-11:]
        else:
            assert result.stdout == "0001\n0" + "2000\n"
    whole = await live.exec(script, max_output_bytes=10_000, keep=keep)
    assert (whole.truncated, len(whole.stdout_bytes)) == (False, 10_000)
    assert whole.stdout_bytes == (await live.exec(script)).stdout_bytes
    none = await live.exec(script, max_output_bytes=0, keep=keep)
    assert (none.truncated, none.stdout_bytes) == (True, b"")


@pytest.mark.parametrize(
    ("habit", "suggestion"),
    [("workdir", "cwd"), ("environment", "env"), ("envs", "env"), ("check", "result.check()"), ("stdin", "input"), ("tty", "terminal()"),
     ("background", "start()"), ("timeuot", "timeout")],
)  # fmt: skip
async def test_an_argument_name_of_another_library_gets_an_error_with_our_name(live: Any, habit: str, suggestion: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await live.exec("true", **{habit: "x"})
    assert suggestion in refused.value.message, refused.value
    for name in ("cwd", "timeout", "max_output_bytes"):
        assert name in refused.value.hint


async def test_a_client_sets_the_time_out_of_all_commands(face: Any, stack: Any, live: Any) -> None:
    client = face.client(stack.url, stack.key, command_timeout_s=0.3)
    sandbox = client.get_sandbox(live.id)
    for run in (sandbox.exec, (await sandbox.shell()).run):
        assert (await run("sleep 60")).timed_out
        assert (await run("sleep 0.6; echo on", timeout=60)).stdout == "on\n"
        assert (await run("sleep 0.6; echo on", timeout=float("inf"))).stdout == "on\n"
    await client.close()


async def test_a_sandbox_refers_to_its_client(client: Any, live: Any) -> None:
    assert getattr(live.client, "inner", live.client) is getattr(client, "inner", client)


async def test_a_command_that_never_ran_raises(live: Any) -> None:
    """A result always has a numeric exit code; where no process ran, the call raises instead."""
    shell = await live.shell("one")
    running = await live.start("sleep 60")
    await running.kill()
    assert (await running.wait()).exit_code == 137
    other = await live.shell("one")
    slow = shell.stream("sleep 60")
    iterator = slow.__aiter__()
    waiting = other.stream("echo never")
    waiting.__aiter__()
    await shell.close()
    with pytest.raises(CancelledRemotelyError):
        await waiting.wait()
    del iterator


async def test_a_sandbox_with_its_own_client(face: Any, stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    if face.name == "async":
        async with AsyncSandbox.create("host", cpu=1, labels={"a": "b"}) as sandbox:
            assert (await sandbox.exec("echo", "hi")).stdout == "hi\n"
            assert (await sandbox.info()).labels == {"a": "b"}
            client = sandbox.client
        assert client._closed
        other = await AsyncSandbox.create("host", url=stack.url, api_key=stack.key)
        assert await other.delete()
        with pytest.raises(InvalidArgumentError):
            await AsyncSandbox.create("host", timeout=7)
    else:

        def use() -> None:
            with Sandbox.create("host", cpu=1) as sandbox:
                assert sandbox.exec("echo", "hi").stdout == "hi\n"
                client = sandbox.client
            assert client._closed
            other = Sandbox.create("host", url=stack.url, api_key=stack.key)
            other.close()
            with SandboxClient(stack.url, stack.key) as client:
                assert client.get_sandbox(other.id).delete()

        await asyncio.to_thread(use)


async def test_a_with_block_needs_no_second_await(stack: Any) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        async with client.create_sandbox("host") as sandbox, sandbox.shell() as shell, sandbox.start("cat") as process:
            assert (await shell.run("echo $((6 * 7))")).stdout == "42\n"
            await process.write("x")
            async with sandbox.tunnel(1) as address, sandbox.terminal() as terminal:
                assert address.port > 0
                assert terminal.pid
        both = await asyncio.gather(client.create_sandbox("host"), asyncio.create_task(client.create_sandbox("host")))
        await asyncio.gather(*(one.delete() for one in both))
        with pytest.raises(InvalidArgumentError):
            async with client.create_sandbox(""):
                pass
    assert inspect.iscoroutinefunction(AsyncSandboxClient.create_sandbox)
    assert "ready_timeout_s" in inspect.signature(AsyncSandboxClient.create_sandbox).parameters


def test_the_blocking_client_in_a_running_loop_warns_once(stack: Any) -> None:
    script = (
        "import asyncio, sys, warnings\n"
        "from holdfast import SandboxClient\n"
        "def use():\n"
        "    with SandboxClient(sys.argv[1], sys.argv[2]) as client, client.create_sandbox('host') as sandbox:\n"
        "        sandbox.exec('true')\n"
        "async def main():\n"
        "    use()\n"
        "    use()\n"
        "use()\n"
        "asyncio.run(asyncio.to_thread(use))\n"
        "sys.stderr.write('begin\\n')\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, stack.url, stack.key], capture_output=True, text=True, timeout=60, check=True)
    before, _, after = ended.stderr.partition("begin\n")
    assert before == ""
    assert after.count("RuntimeWarning") == 1, after
    assert "AsyncSandboxClient" in after
    assert after.startswith("<string>:4: "), "the warning names the caller's line"


async def test_a_tunnel_waits_for_a_listener(live: Any) -> None:
    with pytest.raises(PortUnreachableError) as refused:
        await live.tunnel(8123, wait_s=0)
    assert refused.value.fault == "workload"
    assert "8123" in refused.value.message
    with pytest.raises(PortUnreachableError):
        await live.tunnel(8123, wait_s=0.2)
    with pytest.raises(InvalidArgumentError, match="wait_s"):
        await live.tunnel(8123, wait_s=-1)
    await live.start("sleep 0.5; exec python3 -m http.server 8123 --bind 127.0.0.1", detached=True)
    tunnel = await live.tunnel(8123, wait_s=60)
    async with httpx.AsyncClient(trust_env=False) as web:
        assert (await web.get(f"http://{tunnel.address}/")).status_code == 200
    await tunnel.close()


async def test_a_map_keeps_the_order_the_concurrency_limit_and_exceptions(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    running = most = 0
    is_async = isinstance(client, AsyncSandboxClient)

    async def double(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with client.create_sandbox("host") if is_async else await client.create_sandbox("host") as sandbox:
            result = await sandbox.exec("expr", str(number), "*", "2")
        running -= 1
        return int(result.stdout)

    async def odd_fails(number: int) -> int:
        if number % 2:
            raise SandboxLostError("gone") if number == 1 else ValueError(number)
        return number

    if is_async:
        assert await client.map(double, range(6), concurrency=3, progress=True) == [0, 2, 4, 6, 8, 10]
        assert 1 < most <= 3
        assert "6/6" in capsys.readouterr().err
        kept = await client.map(odd_fails, range(4), return_exceptions=True, progress=True)
        assert "4/4, 2 failed (1 infrastructure)" in capsys.readouterr().err
        with pytest.raises((SandboxLostError, ValueError)):
            await client.map(odd_fails, range(4))
    else:
        inner = client.inner

        def use(number: int) -> int:
            with inner.create_sandbox("host") as sandbox:
                return int(sandbox.exec("expr", str(number), "*", "2").stdout)

        def failing(number: int) -> int:
            return asyncio.run(odd_fails(number))

        assert await client.map(use, range(6), concurrency=3) == [0, 2, 4, 6, 8, 10]
        assert capsys.readouterr().err == "", "without a terminal, no progress is printed"
        kept = await client.map(failing, range(4), return_exceptions=True)
        with pytest.raises((SandboxLostError, ValueError)):
            await client.map(failing, range(4))
    assert [getattr(one, "is_infrastructure", one if isinstance(one, int) else None) for one in kept] == [0, True, 2, None]
    assert await client.map(odd_fails if is_async else failing, []) == []
    with pytest.raises(InvalidArgumentError, match="concurrency"):
        await client.map(odd_fails, [1], concurrency=0)
