"""Living shells on a terminal: what their commands see, exact results, input, sizes, and what a command may leave behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from holdfast_wire.frames import Failed, Opened, Output

from tests.support.channel import DEADLINE_S
from tests.support.own_process import in_own_process
from tests.support.process_channel import Client, LiveShell, client

PATH = os.environ["PATH"]
KINDS = pytest.mark.parametrize("kind", ["bash", "sh"])


def shell_of(sandbox: Client, kind: str = "bash", **params: object) -> LiveShell:
    return sandbox.shell(tty=True, shell=kind, **params)


async def until_written(shell: LiveShell, what: bytes) -> None:
    def arrived() -> bool:
        return what in b"".join(fact.data for fact in shell.channel.facts if isinstance(fact, Output))

    await until(shell, arrived, what)


async def until(shell: LiveShell, condition: Callable[[], object], what: object) -> None:
    try:
        await shell.channel.until(condition)
    except TimeoutError:
        raise AssertionError(f"waited for {what!r}, got {shell.channel.facts[-5:]}") from None


@KINDS
async def test_commands_see_a_terminal_and_results_are_exact(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind, rows=31, cols=97)
        assert (await shell.channel.fact(Opened)).info["tty"] is True
        for _ in range(3):
            seen = await shell.run("test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM; (exit 7)")
            assert (seen.exit_code, seen.stderr) == (7, b"")
            lines = seen.stdout.split(b"\r\n")
            assert lines[0].startswith(b"/dev/pts/")
            assert lines[1:] == [b"31 97", b"xterm-256color", b""]
        await shell.run("cd /usr; X=kept; f() { echo f; }")
        assert (await shell.run("pwd; echo $X; f; echo err >&2")).stdout == b"/usr\r\nkept\r\nf\r\nerr\r\n"
        assert (await shell.run("true")).stdout == b""
        assert (await shell.run("printf 'no newline'; false")).exit_code == 1
        assert (await shell.run("exec 3</dev/tty && echo opened")).stdout == b"opened\r\n"


@KINDS
async def test_large_output_is_complete(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        expected = b"".join(b"%d\r\n" % number for number in range(1, 100_001))
        for _ in range(3):
            outcome = await shell.run("seq 1 100000")
            assert outcome.stdout == expected
            assert outcome.result["streams"][1][0] == len(expected)
        for number in range(200):  # output written just before the end is included
            assert (await shell.run(f"echo {number}; exit_code() {{ return {number}; }}; exit_code")).stdout == b"%d\r\n" % number


@KINDS
async def test_input_reaches_the_running_command(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        run = shell.begin("printf 'name? '; read name; echo hello $name; cat; echo over")
        await until_written(shell, b"name? ")
        shell.handler.write(b"world\n", False)
        await until_written(shell, b"hello world")
        shell.handler.write(b"line\n\x04", False)
        outcome = await shell.wait(run)
        assert outcome.stdout == b"name? world\r\nhello world\r\nline\r\nline\r\nover\r\n"
        early = shell.begin("read first; echo got $first")
        shell.handler.write(b"at once\n", False)
        assert (await shell.wait(early)).stdout.endswith(b"got at once\r\n")
        eof = shell.begin("cat >/dev/null; echo ended")
        shell.handler.write(b"", True)
        assert (await shell.wait(eof)).stdout.endswith(b"ended\r\n")


@KINDS
async def test_unread_input_is_dropped_when_its_command_ends(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        run = shell.begin("echo ready; read one; echo got $one")
        await until_written(shell, b"ready")
        shell.handler.write(b"first\nrm -rf everything\n", False)
        await until_written(shell, b"everything")
        assert b"got first" in (await shell.wait(run)).stdout
        after = await shell.run("read -t 1 late </dev/tty; echo late: $late" if kind == "bash" else "echo late:")
        assert after.stdout.endswith(b"late:\r\n")


@KINDS
async def test_an_interrupt_from_the_keyboard(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        await shell.run("X=kept")
        for number in range(3):
            # printed by the child: on any terminal, a key pressed while the shell starts it may interrupt the shell alone
            run = shell.begin(f"sh -c 'echo ready{number}; exec sleep 600'; echo never")
            await until_written(shell, b"ready%d" % number)
            shell.handler.write(b"\x03", False)
            outcome = await shell.wait(run)
            assert outcome.exit_code == 130
            assert b"never" not in outcome.stdout
            after = await shell.run("echo $X")
            assert (after.stdout, after.result["shell"]["restarted"]) == (b"kept\r\n", False)
        program = "import time\ntry: print('set', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: print('caught')"
        run = shell.begin(f'python3 -c "{program}"')
        await until_written(shell, b"set")
        shell.handler.write(b"\x03", False)
        assert b"caught" in (await shell.wait(run)).stdout
        assert (await shell.run("echo $X")).stdout == b"kept\r\n"


@KINDS
async def test_a_resize_reaches_the_running_command(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        run = shell.begin("trap 'stty size; exit_now=1' WINCH; echo ready; while [ -z \"$exit_now\" ]; do sleep 0.01; done; trap - WINCH")
        await until_written(shell, b"ready")
        shell.handler.resize(12, 34)
        assert (await shell.wait(run)).stdout == b"ready\r\n12 34\r\n"
        shell.handler.resize(0, 5000)
        assert (await shell.run("stty size")).stdout == b"12 34\r\n"


async def test_modes_stay_unless_a_signal_ended_the_command() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox)
        await shell.run("stty -echo")
        run = shell.begin("read word; echo got $word")
        shell.handler.write(b"secret\n", False)
        assert (await shell.wait(run)).stdout == b"got secret\r\n"
        assert (await shell.run("stty raw; kill -9 $BASHPID", timeout_s=30)).exit_code in (137, 0)
        killed = await shell.run("sh -c 'stty raw -opost; kill -9 $$'")
        assert killed.exit_code == 137
        assert (await shell.run("echo fine")).stdout == b"fine\r\n"


@KINDS
async def test_a_time_out_ends_all_processes_of_the_command(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        await shell.run("X=kept; cd /usr")
        outcome = await shell.run("echo before; sleep 600 & setsid sleep 601 & cat", timeout_s=1.5)
        assert (outcome.exit_code, outcome.result["timed_out"]) == (124, True)
        assert outcome.stdout.startswith(b"before")
        assert (await shell.run("echo $X; pwd")).stdout == b"kept\r\n/usr\r\n"


@pytest.mark.parametrize("script", ["exit 3", "exec sh -c 'exit 3'", "set -e; false; true", "kill -9 $$"])
async def test_a_shell_that_ends_is_rebuilt_on_another_terminal(script: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, rows=31, cols=97)
        await shell.run("X=kept; cd /usr")
        assert (await shell.run(script)).exit_code in (1, 3, 137)
        after = await shell.run("echo $X; pwd; test -t 0; stty size")
        assert after.stdout == b"kept\r\n/usr\r\n31 97\r\n"
        run = shell.begin("read key; echo got $key")
        shell.handler.write(b"keys\n", False)
        assert b"got keys" in (await shell.wait(run)).stdout


async def test_a_program_that_keeps_the_foreground_costs_the_shells_process_and_nothing_else() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox)
        await shell.run("X=kept; cd /usr")
        grab = "import os,signal; os.setpgid(0,0); signal.signal(signal.SIGTTOU, signal.SIG_IGN); os.tcsetpgrp(0, os.getpid()); "
        grab += "os.kill(os.getpid(), 9)"
        assert (await shell.run(f'python3 -c "{grab}"')).exit_code == 137
        run = shell.begin("read key; echo got $key; echo $X; pwd")
        shell.handler.write(b"keys\n", False)
        outcome = await shell.wait(run)
        assert outcome.stdout.endswith(b"got keys\r\nkept\r\n/usr\r\n")
        assert outcome.result["shell"]["restarted"] is True


async def test_an_interactive_shell_inside_gives_the_terminal_back() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox)
        for number in range(2):
            run = shell.begin(f"PS1='inner{number}> ' bash --norc --noprofile -i")
            await until_written(shell, b"inner%d> " % number)
            shell.handler.write(b"(exit 9) && true; exit 9\n", False)
            assert (await shell.wait(run)).exit_code == 9
            after = await shell.run("test -t 0; echo $?")
            assert (after.stdout, after.result["shell"]["restarted"]) == (b"0\r\n", False)


@KINDS
async def test_background_processes_write_to_the_output_of_the_current_command(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = shell_of(sandbox, kind)
        assert (await shell.run("(while :; do echo tick; sleep 0.02; done) & echo $!")).exit_code == 0
        facts, past = shell.channel.facts, len(shell.channel.facts)
        run = shell.begin("read until")
        await until(shell, lambda: any(isinstance(fact, Output) and b"tick" in fact.data for fact in facts[past:]), "tick")
        shell.handler.write(b"\n", False)
        assert b"tick" in (await shell.wait(run)).stdout
        for _ in range(20):
            assert (await shell.run("true")).exit_code == 0


async def test_a_slow_reader_blocks_the_command() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = LiveShell(sandbox.open("shell", {"tty": True}, window=4096, reading=False), iter(range(100)))
        run = shell.begin("seq 1 200000; echo over")
        await shell.channel.fact(Output)
        shell.channel._reading = True
        shell.channel.read()
        outcome = await shell.wait(run)
        assert outcome.stdout.endswith(b"200000\r\nover\r\n")
        assert outcome.stdout.count(b"\n") == 200_001


async def test_stdin_pipes_and_a_shell_of_that_name_without_a_terminal_are_refused() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        plain = sandbox.shell(name="plain")
        await plain.run("true")
        refused = sandbox.open("shell", {"name": "plain", "tty": True})
        last = await refused.end()
        assert isinstance(last, Failed)
        assert last.error["code"] == "command_conflict"
        shell = shell_of(sandbox, name="tty")
        asked = await shell.run("cat", stdin="pipe")
        assert asked.result["error"]["code"] == "invalid_argument"
        again = shell_of(sandbox, name="tty", rows=5, cols=6)
        assert (await again.run("stty size")).stdout == b"5 6\r\n"
        without = sandbox.shell(name="tty")
        assert (await without.channel.fact(Opened)).info["tty"] is True
        bad = await sandbox.open("shell", {"tty": True, "rows": 0}).end()
        assert isinstance(bad, Failed)
        assert bad.error["code"] == "invalid_argument"


@in_own_process
async def test_no_descriptor_stays_open() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        first = shell_of(sandbox)
        await first.run("true")
        first.handler.close(False)
        await first.channel.end()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            shell = shell_of(sandbox)
            await shell.run("exit 3")
            await shell.run("true")
            shell.handler.close(False)
            await shell.channel.end()
        async with asyncio.timeout(DEADLINE_S):
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0)
