"""One stream in the order of writing, commands to talk with (``interact``, ``expect``), and small things of files, on both APIs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from holdfast import CommandFailedError, InputClosedError, InvalidArgumentError, NotFoundError, SandboxLostError, WaitTimeoutError

from tests.sdk.support.requirements import STACK

pytestmark = STACK
PROMPT_S = 60.0
MIXED = "echo a; echo b >&2; echo c; ls /no-such-place; echo d"


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_shell_writes_both_streams_into_one_in_order(live: Any, kind: str) -> None:
    shell = await live.shell(shell=kind)
    result = await shell.run(MIXED, stderr="stdout")
    first, *middle, last = result.stdout.splitlines()
    assert (first, middle[:2], last, result.stderr) == ("a", ["b", "c"], "d", "")
    assert "no-such-place" in middle[2]
    assert result.output == result.stdout
    assert (await shell.run("cat; echo e >&2; echo f", stderr="stdout", input="in\n")).stdout == "in\ne\nf\n"
    apart = await shell.run("echo out; echo err >&2")
    assert (apart.stdout, apart.stderr) == ("out\n", "err\n"), "the next command has two streams again"
    with pytest.raises(InvalidArgumentError):
        await shell.run("true", stderr="both")


async def test_live_output_of_a_shell_comes_in_the_order_of_writing(live: Any) -> None:
    shell = await live.shell()
    stream = shell.stream("for i in 1 2 3; do echo o$i; echo e$i >&2; done; (exit 4)", stderr="stdout")
    seen = b"".join([chunk.data async for chunk in stream])
    assert seen == b"o1\ne1\no2\ne2\no3\ne3\n"
    assert stream.result.exit_code == 4


async def test_an_error_of_bash_in_one_stream_is_found(live: Any) -> None:
    shell = await live.shell()
    broken = await shell.run("echo $(", stderr="stdout")
    assert broken.exit_code != 0
    assert "unexpected" in broken.stdout
    assert (await shell.run("echo lives")).stdout == "lives\n"


async def test_talks_with_a_program(live: Any) -> None:
    shell = await live.shell()
    await shell.run("X=kept")
    async with await shell.interact("python3 -iq") as python:
        assert (await python.expect(">>> ", PROMPT_S)) == ">>> "
        await python.send("6 * 7\n")
        assert await python.expect(re.compile(r"^(\d+)\n", re.MULTILINE), PROMPT_S) == "42\n"
        await python.expect(">>> ", PROMPT_S)
        await python.send("import sys; print('bye'); sys.exit(3)\n")
        await python.expect("bye", PROMPT_S)
        result = await python.wait()
    assert (result.exit_code, result.stdout.count("bye")) == (3, 1)
    assert (await shell.run("echo $X")).stdout == "kept\n"


async def test_leaving_the_block_ends_the_program_and_not_the_shell(live: Any) -> None:
    shell = await live.shell()
    async with await shell.interact("cat; sleep 600") as program:
        await program.send("echoed\n")
        await program.expect("echoed\n", PROMPT_S)
    assert (await shell.run("jobs; echo on")).stdout == "on\n"


async def test_a_closed_input_is_an_end_of_file(live: Any) -> None:
    shell = await live.shell()
    async with await shell.interact("sort") as program:
        await program.send("b\na\n")
        await program.close_stdin()
        assert (await program.wait()).stdout == "a\nb\n"
        with pytest.raises(InputClosedError):
            await program.send("c\n")


async def test_types_keys_on_a_terminal(live: Any) -> None:
    shell = await live.shell(tty=True)
    async with await shell.interact("read -p 'name? ' name; echo hello $name; read -p 'again? '") as program:
        await program.expect("name? ", PROMPT_S)
        await program.send("world\n")
        assert (await program.expect("hello world", PROMPT_S)).endswith("hello world")
        await program.expect("again? ", PROMPT_S)
        await program.send("\x03")
        assert (await program.wait(PROMPT_S)).exit_code == 130


async def test_expect_keeps_what_it_has_read_beyond_its_pattern(live: Any) -> None:
    async with await live.start("printf 'one two three'; sleep 600", stderr="stdout") as process:
        assert await process.expect("one ", PROMPT_S) == "one "
        assert (await process.read(PROMPT_S)).data == b"two three"
        with pytest.raises(WaitTimeoutError):
            await process.expect("four", 0.2)


async def test_expect_reads_again_what_did_not_match_in_time(live: Any) -> None:
    async with await live.start("printf 'one'; read line; printf ' two'", stderr="stdout") as process:
        await process.expect("on", PROMPT_S)
        with pytest.raises(WaitTimeoutError):
            await process.expect("two", 0.3)
        await process.write("\n")
        assert await process.expect(b"two", PROMPT_S) == "e two"


async def test_expect_raises_with_the_result_if_the_program_ends(live: Any) -> None:
    async with await live.start("echo other; exit 5") as process:
        with pytest.raises(CommandFailedError, match="other") as failed:
            await process.expect("wanted", PROMPT_S)
    assert failed.value.result.exit_code == 5
    with pytest.raises(InvalidArgumentError):
        await process.expect("", PROMPT_S)


async def test_a_cancelled_interact_ends_the_command(live: Any) -> None:
    shell = await live.shell()
    busy = asyncio.ensure_future(shell.run("read line < /dev/zero; sleep 600", timeout=2))
    waiting = asyncio.ensure_future(shell.interact("touch /tmp/never"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(busy, waiting, return_exceptions=True)
    if type(shell).__name__ == "AsyncShell":  # a thread cannot be cancelled
        assert not await live.files.exists("/tmp/never")


async def test_a_program_that_is_not_executed_says_why(live: Any) -> None:
    await live.files.write("/tmp/no-interpreter", "#!/no/such/program\n", mode=0o755)
    for argv, code, why in (
        (["no-such-program"], 127, "not_found"),
        (["/no/such/program"], 127, "not_found"),
        (["/etc/passwd"], 126, "permission_denied"),
        (["/tmp/no-interpreter"], 126, "not_executable"),
        (["true"], 0, None),
        (["sh", "-c", "exit 127"], 127, None),
    ):
        result = await live.exec(argv)
        assert (result.exit_code, result.not_executed) == (code, why), argv
    rest = live.client._options if hasattr(live.client, "_options") else None
    assert rest is None or rest.transport == "auto"


async def test_edits_a_file(live: Any) -> None:
    await live.files.write("/tmp/edited", "aa b aa\n", mode=0o750)
    assert await live.files.edit("/tmp/edited", "b", "c") == 1
    assert await live.files.edit("/tmp/edited", "aa", "é", replace_all=True) == 2
    assert await live.files.read_text("/tmp/edited") == "é c é\n"
    assert (await live.files.stat("/tmp/edited")).mode & 0o777 == 0o750
    for old in ("é", "missing", ""):
        with pytest.raises(InvalidArgumentError):
            await live.files.edit("/tmp/edited", old, "x")
    assert await live.files.read_text("/tmp/edited") == "é c é\n"


async def test_the_record_of_a_deleted_sandbox_is_not_found_and_says_why(client: Any) -> None:
    async with await client.create_sandbox("host") as sandbox:
        pass
    with pytest.raises(NotFoundError) as missing:
        await sandbox.refresh()
    assert isinstance(missing.value, SandboxLostError)
    assert missing.value.reason == "deleted"
    with pytest.raises(NotFoundError):
        await client.get_sandbox("never").refresh()
