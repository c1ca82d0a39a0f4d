"""What users of subprocess, docker, Modal and E2B type, on the real stack and both faces."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import CancelledRemotelyError, InvalidArgumentError

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def test_a_command_is_a_string_a_list_or_words_one_by_one(live: Any) -> None:
    for words in (("printf '%s|' 'a b' c",), (["printf", "%s|", "a b", "c"],), ("printf", "%s|", "a b", "c")):
        assert (await live.exec(*words)).stdout == "a b|c|"
    process = await live.start("printf", "%s|", "a b", "$c")
    assert (await process.wait()).stdout == "a b|$c|"
    for wrong in ((["ls"], "-la"), ("ls", 7), ("ls", "a\0b")):
        with pytest.raises(InvalidArgumentError):
            await live.exec(*wrong)


async def test_one_stream_in_the_order_of_writing(live: Any) -> None:
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
async def test_what_is_kept_of_much_output(live: Any, keep: str, kept: str) -> None:
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
    ("habit", "says"),
    [("workdir", "cwd"), ("environment", "env"), ("envs", "env"), ("check", "result.check()"), ("stdin", "input"), ("tty", "terminal()"),
     ("background", "start()"), ("timeuot", "timeout")],
)  # fmt: skip
async def test_an_argument_of_another_name_is_answered_with_its_name_here(live: Any, habit: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await live.exec("true", **{habit: "x"})
    assert says in refused.value.message, refused.value
    for name in ("cwd", "timeout", "max_output_bytes"):
        assert name in refused.value.hint


async def test_a_time_out_for_all_commands(face: Any, stack: Any, live: Any) -> None:
    client = face.client(stack.url, stack.key, command_timeout_s=0.3)
    sandbox = client.get_sandbox(live.id)
    for run in (sandbox.exec, (await sandbox.shell()).run):
        assert (await run("sleep 60")).timed_out
        assert (await run("sleep 0.6; echo on", timeout=60)).stdout == "on\n"
        assert (await run("sleep 0.6; echo on", timeout=float("inf"))).stdout == "on\n"
    await client.close()


async def test_a_sandbox_knows_its_client(client: Any, live: Any) -> None:
    assert getattr(live.client, "inner", live.client) is getattr(client, "inner", client)


async def test_what_never_ran_has_no_result(live: Any) -> None:
    """An exit code is a number whenever a process ran; where none did, there is an exception."""
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
