"""Terminals on real PTYs."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from holdfast_wire.frames import Exited, Failed, Output, Started

from tests.support.process_channel import Client, ProcessChannel, client
from tests.support.running import only_terminal
from tests.support.until import until_async

PATH = os.environ["PATH"]


def text(channel: ProcessChannel) -> bytes:
    return bytes(channel.output)


async def until_output(channel: ProcessChannel, what: bytes) -> None:
    try:
        await channel.until(lambda: what in channel.output)
    except TimeoutError:
        raise AssertionError(f"waited for {what!r}, got {bytes(channel.output[-2000:])!r}") from None


def bash(sandbox: Client, **params: object) -> ProcessChannel:
    return sandbox.open("terminal", {"argv": ["bash", "--norc", "--noprofile"], "env": {"PS1": "> "}, **params})


async def test_it_is_a_terminal_with_a_size() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = bash(sandbox, rows=31, cols=97)
        assert (await channel.fact(Started)).info["created"] is True
        channel.handler.write(b"stty size; tty; echo $TERM\n", False)
        await until_output(channel, b"31 97\r\n/dev/pts/")
        await until_output(channel, b"xterm-256color\r\n")
        channel.handler.write(b"trap 'stty size' WINCH; echo trap:$((40+2))\n", False)
        await until_output(channel, b"trap:42")
        channel.handler.resize(12, 34)
        channel.handler.write(b"\n", False)
        await until_output(channel, b"12 34\r\n")
        channel.handler.write(b"exit 5\n", False)
        last = await channel.end()
        assert isinstance(last, Exited)
        assert last.result["exit_code"] == 5
        assert not sandbox.context.terminals


async def test_job_control_and_ctrl_c() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = bash(sandbox)
        channel.handler.write(b"(echo go:$((40+2)); exec sleep 60)\n", False)
        await until_output(channel, b"go:42")
        channel.handler.write(b"\x03", False)
        await until_output(channel, b"^C")
        channel.handler.write(b"echo back:$?; (echo in:$((40+2)); exec sleep 61)\n", False)
        await until_output(channel, b"back:130")
        await until_output(channel, b"in:42")
        channel.handler.write(b"\x1a", False)
        await until_output(channel, b"Stopped")
        channel.handler.write(b"exit\n", False)
        await until_output(channel, b"There are stopped jobs")
        channel.handler.write(b"exit 3\n", False)
        last = await channel.end()
        assert isinstance(last, Exited)
        assert last.result["exit_code"] == 3


async def test_end_of_input_is_sent_as_a_key() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "cat; echo over"]})
        channel.handler.write(b"line\n", True)
        assert isinstance(await channel.end(), Exited)
        assert text(channel).endswith(b"line\r\nover\r\n")


async def test_attach_again_by_name() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        first = bash(sandbox, name="main")
        first.handler.write(b"X=kept; echo first-$X\n", False)
        await first.until(lambda: b"first-kept" in first.output and first.output.endswith(b"> "))
        first.handler.drop()
        second = bash(sandbox, name="main", rows=40, cols=100)
        assert (await second.fact(Started)).info["created"] is False
        await until_output(second, b"first-kept")
        second.handler.write(b"echo $X-again; stty size\n", False)
        await until_output(second, b"kept-again")
        await until_output(second, b"40 100")
        second.handler.close(True)
        assert isinstance(await second.end(), Failed)
        third = bash(sandbox, name="main")
        third.handler.close(False)
        last = await third.end()
        assert isinstance(last, Exited)
        assert last.result["cause"]["reason"] == "cancelled"


async def test_an_attach_without_a_size_leaves_it_and_one_that_must_not_create_creates_nothing() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        bash(sandbox, name="t", rows=31, cols=97)
        again = sandbox.open("terminal", {"name": "t", "create": False})
        assert (await again.fact(Started)).info["created"] is False
        again.handler.write(b"stty size\n", False)
        await until_output(again, b"31 97\r\n")
        again.handler.write(b"exit\n", False)
        await again.end()
        refused = await sandbox.open("terminal", {"name": "t", "create": False}).end()
        assert isinstance(refused, Failed)
        assert refused.error["code"] == "command_not_found"
        assert not sandbox.context.terminals


async def test_a_size_that_a_program_overwrites_with_the_old_one_is_set_again() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"name": "t", "argv": ["sleep", "60"]})
        master = only_terminal(sandbox.context)._master
        before = fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8))
        channel.handler.resize(40, 100)
        fcntl.ioctl(master, termios.TIOCSWINSZ, before)  # as a shell's line editor does that read the size just before

        def size() -> tuple[int, ...]:
            return struct.unpack("HHHH", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))[:2]

        await until_async(lambda: size() == (40, 100), deadline_s=60, what="the requested size")


async def test_the_tail_of_the_output_is_kept_without_a_client() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "seq 1 200000; echo over; exec sleep 60"], "name": "t"})
        channel.handler.drop()
        spool = only_terminal(sandbox.context).spool
        await until_async(lambda: spool.size > 1_400_000, deadline_s=60, what="the output to be written")
        again = sandbox.open("terminal", {"name": "t"})
        await until_output(again, b"over")
        assert len(again.output) <= 512 * 1024


async def test_a_slow_client_blocks_the_program() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open(
            "terminal", {"argv": ["sh", "-c", "head -c 4000000 /dev/zero | tr '\\0' x; echo; echo over"]}, window=65536, reading=False
        )
        await until_async(lambda: sandbox.context.budget.held_bytes > 250_000, deadline_s=60, what="a full spool")
        assert sandbox.context.budget.held_bytes < 700_000

        def done() -> bool:
            channel.read()
            return channel.ended.is_set()

        await until_async(done, deadline_s=60, what="the end")
        assert text(channel).endswith(b"over\r\n")
        assert channel.output.count(b"x") == 4_000_000


async def test_a_long_paste_arrives_whole() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "stty raw -echo; echo ready; head -c 300000 | wc -c"]})
        await until_output(channel, b"ready")
        await channel.write(b"p" * 300_000)
        await until_output(channel, b"300000")
        assert channel.consumed == 300_000


async def test_time_out_and_failures() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sleep", "60"], "timeout_s": 0.1})
        last = await channel.end()
        assert isinstance(last, Exited)
        assert (last.result["exit_code"], last.result["timed_out"]) == (124, True)
        missing = sandbox.open("terminal", {"argv": ["no-such-program"]})
        last = await missing.end()
        assert isinstance(last, Exited)
        assert last.result["exit_code"] == 127
        for params in ({"rows": 0}, {"cols": "x"}, {"argv": "bash"}, {"cwd": "/no/such"}):
            refused = await sandbox.open("terminal", dict(params)).end()
            assert isinstance(refused, Failed)
            assert refused.error["code"] == ("cwd_not_found" if "cwd" in params else "invalid_argument")
        assert not sandbox.context.terminals


async def test_default_is_a_shell() -> None:
    async with client(env={"PATH": PATH, "HOME": "/nowhere"}) as sandbox:
        channel = sandbox.open("terminal", {})
        await channel.until(lambda: channel.output)  # its prompt: input before that may be discarded
        channel.handler.write(b"echo $((40+2))\n", False)
        await until_output(channel, b"42\r\n")
        assert any(isinstance(fact, Output) for fact in channel.facts)
