"""Commands, shells, processes and terminals through the whole chain of SDK, gateway, agent and a real bash, on both APIs."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from holdfast import ConflictError, NotFoundError, WaitTimeoutError

from tests.sdk.support.requirements import STACK
from tests.support.until import until_async

pytestmark = STACK


async def gone(sandbox: Any, pid: object) -> bool:
    """Whether a process has ended; the agent may take a moment to reap it."""
    return bool((await sandbox.exec(f"p={pid}; test ! -e /proc/$p || grep -q '^State:.Z' /proc/$p/status")).ok)


async def test_a_shell_keeps_its_state_between_commands(live: Any) -> None:
    shell = await live.shell()
    await shell.run("cd /tmp && export N=41; f() { echo f$N; }")
    result = await shell.run("echo $((N + 1)); pwd >&2; f", timeout=30)
    assert (result.exit_code, result.stdout, result.stderr, result.cwd) == (0, "42\nf41\n", "/tmp\n", "/tmp")
    assert not result.timed_out
    assert not result.truncated
    assert result.cause is None
    assert result.duration_s > 0
    assert (await shell.run("exit 3")).exit_code == 3
    await shell.close()


async def test_shells_are_independent(live: Any) -> None:
    first, second = await live.shell(), await live.shell(cwd="/", env={"WHO": "second"})
    await first.run("cd /usr")
    assert (await second.run("pwd; echo $WHO")).stdout == "/\nsecond\n"
    slow = asyncio.create_task(first.run("until test -e /tmp/go; do sleep 0.02; done; echo slow"))
    assert (await second.run("echo quick")).stdout == "quick\n"
    assert not slow.done()
    await second.run("touch /tmp/go")
    assert (await slow).stdout == "slow\n"


async def test_a_named_shell_is_found_again(live: Any, client: Any) -> None:
    shell = await live.shell("work")
    assert shell.created
    await shell.run("X=kept")
    await shell.detach()
    other = client.get_sandbox(live.id)
    again = await other.shell("work")
    assert not again.created
    assert (again.name, (await again.run("echo $X")).stdout) == ("work", "kept\n")
    await other.close()


async def test_a_stream_delivers_output_while_the_command_runs(live: Any) -> None:
    shell = await live.shell()
    stream = shell.stream("echo one; echo two >&2; sleep 0.2; echo three")
    seen = [(chunk.stream, chunk.text) async for chunk in stream]
    assert "".join(text for number, text in seen if number == 1) == "one\nthree\n"
    assert "".join(text for number, text in seen if number == 2) == "two\n"
    assert stream.result.stdout == "one\nthree\n"


async def test_a_string_is_parsed_by_the_shell_and_a_list_is_not(live: Any) -> None:
    assert (await live.exec(["printf", "%s|", "a b", "$HOME", "*"])).stdout == "a b|$HOME|*|"
    assert (await live.exec("echo $((6*7)) | tr 2 3", cwd="/tmp")).stdout == "43\n"
    result = await live.exec(["python3", "-c", "print('hi')"], cwd="/tmp", env={"A": "1"}, input=b"", timeout=60)
    assert (result.exit_code, result.stdout) == (0, "hi\n")
    assert (await live.exec("pwd; echo $A", cwd="/tmp", env={"A": "1"})).stdout == "/tmp\n1\n"


async def test_the_exit_code_of_an_unknown_program_is_127(live: Any) -> None:
    for command in (["no-such-program"], "no-such-program"):
        result = await live.exec(command)
        assert (result.exit_code, result.ok) == (127, False)
        assert "no-such-program" in result.stderr
    assert (await live.exec(["/etc/passwd"])).exit_code == 126


async def test_input_is_complete_and_followed_by_end_of_file(live: Any) -> None:
    data = bytes(range(256)) * 20_000
    result = await live.exec(["sha256sum"], input=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert (await live.exec(["wc", "-c"])).stdout.strip() == "0"
    assert (await live.exec("cat", input="text")).stdout == "text"


async def test_a_time_out_keeps_the_output_and_kills_the_tree(live: Any) -> None:
    script = "echo before; (setsid sleep 60 & echo $! > /tmp/child); sleep 60"
    result = await live.exec(script, timeout=3)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "before\n")
    assert (result.cause.reason, result.cause.fault) == ("timeout", "workload")
    assert await gone(live, "$(cat /tmp/child)")
    shell = await live.shell()
    assert (await shell.run("echo a; sleep 60", timeout=0.3)).timed_out
    assert (await shell.run("echo alive")).stdout == "alive\n"


async def test_binary_output_is_exact_and_counted(live: Any) -> None:
    result = await live.exec(["head", "-c", "3000000", "/dev/urandom"])
    assert len(result.stdout_bytes) == 3_000_000
    assert result.streams[1].seen == 3_000_000
    assert result.streams[1].sha256 == hashlib.sha256(result.stdout_bytes).hexdigest()
    capped = await live.exec(["head", "-c", "3000000", "/dev/zero"], max_output_bytes=10)
    assert (capped.stdout_bytes, capped.truncated) == (b"\0" * 10, True)


async def test_the_same_id_runs_once(live: Any) -> None:
    first = await live.exec("echo x >> /tmp/once; wc -l < /tmp/once", command_id="only")
    assert first.stdout.strip() == "1"
    with pytest.raises(ConflictError):
        await live.exec("echo other", command_id="only")
    again = await live.exec("echo x >> /tmp/once; wc -l < /tmp/once", command_id="only")
    assert (again.exit_code, again.stdout.strip()) in ((0, "1"), (0, ""))
    assert (await live.exec("wc -l < /tmp/once")).stdout.strip() == "1"


async def test_a_process_reads_input_and_writes_output(live: Any) -> None:
    async with await live.start("cat; echo bye >&2; exit 4") as process:
        await process.write(b"ping")
        assert (await process.read()).data == b"ping"
        await process.close_stdin()
        result = await process.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (4, "ping", "bye\n")


async def test_a_process_is_signalled_killed_and_ended_with_its_block(live: Any) -> None:
    process = await live.start("trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    assert (await process.read()).text == "up\n"
    await process.terminate()
    result = await process.wait()
    assert (result.exit_code, result.stdout) == (9, "up\ncaught\n")
    process = await live.start(["sleep", "60"])
    assert process.pid
    await process.kill()
    assert (await process.wait()).signal == "KILL"
    async with await live.start(["sleep", "60"]) as process:
        pid = process.pid
    assert await gone(live, pid), "leaving the block ends the process"


async def test_the_time_out_of_a_wait_does_not_end_the_process(live: Any) -> None:
    process = await live.start("read word; echo $word")
    with pytest.raises(WaitTimeoutError):
        await process.wait(timeout=0.05)
    with pytest.raises(TimeoutError):
        await process.read(timeout=0.05)
    await process.write(b"done\n")
    assert (await process.wait()).stdout == "done\n"


async def test_a_command_is_followed_from_another_client(live: Any, client: Any) -> None:
    process = await live.start("echo first; sleep 0.3; echo last", command_id="long", detached=True)
    other = client.get_sandbox(live.id)
    followed = await other.follow("long")
    assert (await followed.wait()).stdout == "first\nlast\n"
    assert (await process.wait()).exit_code == 0
    with pytest.raises(NotFoundError):
        await other.follow("never")
    await other.close()


async def test_a_terminal_has_a_tty_and_a_size(live: Any) -> None:
    async with await live.terminal("bash --norc", rows=24, cols=80, env={"PS1": "$ "}) as terminal:
        await terminal.write("tty; stty size\n")
        text = await _read_until(terminal, "24 80")
        assert "/dev/pts/" in text
        await terminal.resize(40, 120)
        await terminal.write("stty size\n")
        await _read_until(terminal, "40 120")
        await terminal.write("exit 5\n")
        assert (await terminal.wait()).exit_code == 5


async def _read_until(terminal: Any, wanted: str) -> str:
    text = ""
    while wanted not in text:
        chunk = await terminal.read(timeout=60)
        assert chunk is not None, text
        text += chunk.text
    return text


async def test_a_terminal_is_found_again_by_name(live: Any, client: Any) -> None:
    terminal = await live.terminal("bash --norc", name="desk", env={"PS1": "$ "})
    await terminal.write("echo mar''ker\n")
    await _read_until(terminal, "marker")
    await terminal.detach()
    other = client.get_sandbox(live.id)
    again = await other.terminal(name="desk")
    assert not again.created
    await again.write("exit 6\n")
    assert (await again.wait()).exit_code == 6
    await other.close()


async def until_test(live: Any, condition: str) -> None:
    """Wait until `test` succeeds with this condition in the sandbox."""

    async def is_so() -> bool:
        return bool((await live.exec(f"test {condition}")).ok)

    await until_async(is_so, deadline_s=60, what=condition)


async def test_cancelling_ends_the_remote_command(live: Any, face: Any) -> None:
    if face.name == "sync":
        pytest.skip("Ctrl-C is tested with a process of its own")
    task = asyncio.create_task(live.exec("echo $$ > /tmp/pid; exec sleep 60"))
    await until_test(live, "-s /tmp/pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(live, "$(cat /tmp/pid)")
    shell = await live.shell()
    task = asyncio.create_task(shell.run("echo > /tmp/flag; sleep 60"))
    await until_test(live, "-e /tmp/flag")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shell.run("echo on")).stdout == "on\n"


async def test_fifty_at_once(live: Any) -> None:
    results = await asyncio.gather(*[live.exec(f"echo {n}; exit {n}") for n in range(50)])
    assert [(r.exit_code, r.stdout) for r in results] == [(n, f"{n}\n") for n in range(50)]
