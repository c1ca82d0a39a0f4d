"""The two SWE toolsets in real sandboxes: what each call does, and what is kept from call to call (A2.1)."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import AsyncSandbox, AsyncShell, Chunk, ShellLostError
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.harness.conversation import ChatConversation
from holdfast_recipes.harness.editor import EditorToolset
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import MINI
from holdfast_recipes.harness.loop import run
from holdfast_recipes.harness.shell import ShellToolset
from holdfast_recipes.harness.toolset import Result
from holdfast_recipes.policy.scripted import ScriptedChat, call
from holdfast_recipes.prompts.swe import SUBMIT_WORD

from tests.support.requires import requires

pytestmark = requires("namespaces", "redis")


async def bash(toolset: ShellToolset, command: str, timeout_s: float = 20) -> Result:
    return await toolset.run(ToolCall("bash", {"command": command}, "c1"), timeout_s=timeout_s)


async def test_each_call_is_a_new_subshell_in_the_work_directory(sandbox: AsyncSandbox) -> None:
    tools = ShellToolset(sandbox)
    await bash(tools, "cd /tmp; export A=1; f() { :; }; echo kept > file")
    seen = (await bash(tools, 'pwd; echo "[$A]"; type f; cat /tmp/file; echo "$PAGER"')).observation
    lines = seen.text.splitlines()
    assert lines[:3] + lines[4:] == ["[exit code 0]", "/testbed", "[]", "kept", "cat"]
    assert lines[3].endswith("type: f: not found")
    assert (seen.call_id, seen.exit_code, seen.cause) == ("c1", 0, None)


async def test_standard_error_stands_where_it_was_written(sandbox: AsyncSandbox) -> None:
    seen = (await bash(ShellToolset(sandbox), "echo 1; echo 2 >&2; echo 3; exit 3")).observation
    assert (seen.text, seen.exit_code) == ("[exit code 3]\n1\n2\n3\n", 3)


@pytest.mark.parametrize(("length", "whole"), [(9_999, True), (10_000, False), (25_000, False)])
async def test_long_output_is_shown_by_its_two_ends(sandbox: AsyncSandbox, length: int, whole: bool) -> None:
    seen = (await bash(ShellToolset(sandbox), f"head -c {length - 2} /dev/zero | tr '\\0' x; printf yz")).observation
    shown = seen.text.removeprefix("[exit code 0]\n")
    if whole:
        assert len(shown) == length
    else:
        assert shown == "x" * 5000 + f"\n[{length - 10_000} characters left out]\n" + "x" * 4998 + "yz"


async def test_the_middle_of_a_flood_is_never_fetched(sandbox: AsyncSandbox) -> None:
    seen = (await bash(ShellToolset(sandbox), "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end")).observation
    assert seen.text.endswith("end\n\n[of 20000005 bytes, the middle is not here]")
    assert len(seen.text) < 11_000


async def test_a_command_that_takes_too_long_is_an_observation(sandbox: AsyncSandbox) -> None:
    seen = (await bash(ShellToolset(sandbox), "echo before; sleep 60", timeout_s=3)).observation
    assert (seen.exit_code, seen.cause) == (124, "timeout")
    assert "before" in seen.text


@pytest.mark.parametrize(
    ("command", "patch"),
    [
        (f"echo {SUBMIT_WORD} && printf 'a\\nb\\n'", "a\nb\n"),
        (f"echo {SUBMIT_WORD}", ""),
        (f"printf '\\n  {SUBMIT_WORD}  \\nrest'", "rest"),
        (f"echo {SUBMIT_WORD}; false", None),
        (f"echo first; echo {SUBMIT_WORD}", None),
        (f"echo {SUBMIT_WORD} now", None),
        ("true", None),
    ],
)
async def test_what_hands_the_work_in(sandbox: AsyncSandbox, command: str, patch: str | None) -> None:
    result = await bash(ShellToolset(sandbox), command)
    assert (result.final, result.submission) == (patch is not None, patch)


async def test_a_command_that_no_sandbox_takes_is_answered(sandbox: AsyncSandbox) -> None:
    result = await bash(ShellToolset(sandbox), "echo a\0b")
    assert result.observation.text.startswith("Error: ")
    assert not result.final


@requires("cgroups")
async def test_a_command_out_of_memory_ends_the_rollout_where_there_is_more(sandbox: AsyncSandbox) -> None:
    hungry = "python3 -c 'x = bytearray(1 << 31); x[::4096] = b\"1\" * len(x[::4096])'"
    with pytest.raises(FaultError) as fault:
        await bash(ShellToolset(sandbox, oom_ends=True), hungry)
    assert (fault.value.oom, fault.value.reason) == (True, "oom")
    seen = (await bash(ShellToolset(sandbox), hungry)).observation
    assert (seen.exit_code, seen.cause) == (137, "oom")


async def test_a_rollout_with_a_real_sandbox(sandbox: AsyncSandbox) -> None:
    commands = ["printf 'x = 1\\n' > a.py; cat a.py", f"echo {SUBMIT_WORD} && cat a.py"]
    script = ScriptedChat([call("bash", command=command) for command in commands])
    done = await run(ChatConversation(script), ShellToolset(sandbox), [{"role": "user", "content": "go"}], MINI)
    assert (done.reason, done.submission) == ("submitted", "x = 1\n")
    assert done.turns[0].observations[0].text == "[exit code 0]\nx = 1\n"


# The living shell -------------------------------------------------------------------------------------------------


class ToolCaller:
    """Calls the tools of one editor toolset."""

    def __init__(self, sandbox: AsyncSandbox, **more: Any) -> None:
        self.tools = EditorToolset(sandbox, **more)

    async def call(self, name: str, timeout_s: float = 20, **arguments: Any) -> Observation:
        return (await self.tools.run(ToolCall(name, arguments, "c1"), timeout_s=timeout_s)).observation

    async def terminal(self, command: str, timeout_s: float = 20, **more: Any) -> Observation:
        return await self.call("terminal", timeout_s, command=command, **more)

    async def edit(self, command: str, path: str, **more: Any) -> str:
        return (await self.call("file_editor", command=command, path=path, **more)).text


async def test_the_shell_lives_from_call_to_call(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    await caller.terminal("cd /tmp; A=1; f() { echo f says $1; }")
    seen = await caller.terminal("pwd; f $A; false")
    assert (seen.text, seen.exit_code) == ("/tmp\nf says 1\n\n[exit code 1, in /tmp]", 1)
    assert "[a new shell was started]\n/testbed" in (await caller.terminal("pwd", reset=True)).text
    await caller.tools.close()


async def test_a_command_goes_on_until_it_is_interrupted(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    seen = await caller.terminal("echo begun; sleep 1000", timeout=3)
    assert (seen.exit_code, seen.cause) == (None, "running")
    assert seen.text.startswith("begun\n")
    assert "still runs" in (await caller.terminal("echo other")).text
    assert (await caller.terminal("", timeout=0.1)).cause == "running"
    assert (await caller.terminal("C-c", is_input=True)).exit_code == 130
    assert (await caller.terminal("echo after")).text == "after\n\n[exit code 0, in /testbed]"
    assert "no command is running" in (await caller.terminal("")).text
    assert "no command is running" in (await caller.terminal("x", is_input=True)).text
    await caller.tools.close()


async def test_a_command_takes_input(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    assert (await caller.terminal("read -p 'name? ' name; echo hello $name", timeout=3)).cause == "running"
    assert (await caller.terminal("world", is_input=True)).text == "hello world\n\n[exit code 0, in /testbed]"
    assert (await caller.terminal("echo $name")).text.startswith("world\n")
    await caller.tools.close()


async def test_silence_is_reported_and_the_limit_holds(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox, quiet_s=0.4)
    assert (await caller.terminal("sleep 30")).cause == "running"
    assert (await caller.terminal("C-c", is_input=True)).exit_code == 130
    assert (await caller.terminal("while :; do echo x; sleep 0.1; done", timeout_s=1.0)).cause == "running"
    await caller.tools.close()


async def test_a_shell_that_exited_is_started_again(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    await caller.terminal("cd /tmp")
    assert "started again" in (await caller.terminal("exit 3")).text
    assert (await caller.terminal("pwd")).text.startswith("/tmp\n")
    await caller.tools.close()


async def test_a_shell_that_is_lost_is_answered_and_another_one_made(sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = ToolCaller(sandbox)
    await caller.terminal("cd /tmp")
    real = AsyncShell.stream

    class Lost:
        def __aiter__(self) -> Lost:
            return self

        async def __anext__(self) -> Chunk:
            raise ShellLostError("shell_lost", "the shell is gone")

    monkeypatch.setattr(AsyncShell, "stream", lambda *_: Lost())
    assert (await caller.terminal("pwd")).text == "Error: the shell is gone"
    monkeypatch.setattr(AsyncShell, "stream", real)
    assert (await caller.terminal("pwd")).text.startswith("/testbed\n")
    await caller.tools.close()


async def test_the_file_editor_on_real_files(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    path = "/testbed/package/a.py"
    assert await caller.edit("create", path, file_text="one\ntwo\nthree\n") == "The file was created."
    assert (await caller.edit("create", path, file_text="")).startswith("Error: the file exists")
    assert "2\ttwo" in await caller.edit("view", path, view_range=[2, 2])
    assert "TWO" in await caller.edit("str_replace", path, old_str="two", new_str="TWO")
    assert "zero" in await caller.edit("insert", path, insert_line=0, new_str="zero\n")
    assert await sandbox.files.read_text(path) == "zero\none\nTWO\nthree\n"
    await caller.edit("undo_edit", path)
    assert await sandbox.files.read_text(path) == "one\nTWO\nthree\n"
    await caller.edit("undo_edit", path)
    assert await sandbox.files.read_text(path) == "one\ntwo\nthree\n"
    assert (await caller.edit("undo_edit", path)).startswith("Error: ")
    assert (await caller.edit("str_replace", path, old_str="e", new_str="E")).startswith("Error: old_str occurs")
    assert await caller.edit("view", "/testbed") == "/testbed\n/testbed/package/\n/testbed/package/a.py"
    assert await caller.edit("view", "a.py") == "Error: a.py is no absolute path; did you mean /testbed/a.py?"
    assert await caller.edit("view", "/testbed/none") == "Error: there is no file /testbed/none."
    assert await caller.edit("str_replace", "/testbed", old_str="a") == "Error: /testbed is a directory."


async def test_the_file_editor_keeps_bytes_and_modes(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    await sandbox.files.write("/testbed/latin", b"caf\xe9\r\ntwo\r\n", mode=0o755)
    assert "\ufffd" in await caller.edit("view", "/testbed/latin")
    await caller.edit("str_replace", "/testbed/latin", old_str="two", new_str="2")
    assert await sandbox.files.read("/testbed/latin") == b"caf\xe9\r\n2\r\n"
    assert (await sandbox.files.stat("/testbed/latin")).mode & 0o777 == 0o755
    await sandbox.files.write("/testbed/binary", b"\0\1")
    assert await caller.edit("view", "/testbed/binary") == "Error: /testbed/binary is no text file."


async def test_the_other_tools(sandbox: AsyncSandbox) -> None:
    caller = ToolCaller(sandbox)
    assert (await caller.call("task_tracker", command="view")).text == "There are no tasks."
    tasks = [{"title": "look", "status": "done"}, {"title": "repair", "notes": "a.py"}]
    assert (await caller.call("task_tracker", command="plan", task_list=tasks)).text == "1. [x] look\n2. [ ] repair (a.py)"
    assert (await caller.call("task_tracker", command="plan")).text.startswith("Error: ")
    assert (await caller.call("think", thought="hm")).text == "The thought was noted."
    result = await caller.tools.run(ToolCall("finish", {"message": "done"}), timeout_s=1)
    assert (result.final, result.submission) == (True, None)
