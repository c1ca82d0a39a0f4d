"""Scripts after which the driver writes no snapshot leave the shell's state as it was: tested on text, a real bash and lost shells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from session_agent.agent.shell.driver import BashDialect
from session_agent.agent.shell.state.elision import leaves_state
from tests.support.process_channel import client

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLAIN = (
    "true", "ls -la /tmp", "  ls\n", "ls\npwd\n", "./run.sh --x=1", "a+b c", "ls >x 2>&1", "cat </etc/passwd", "x &>/dev/null",
    "python -m pytest -x tests/ 2>&1 | tail -20", "grep -rn 'foo $(bar) cd' src | head -5", 'cat a > b && echo "done it"; false',
    "ls 2>/dev/null || echo none", "git diff HEAD~1 -- *.py", "sed -n '1,20p' f", "echo cd; true",
)  # fmt: skip
CHANGING = (
    "", "cd /", "A=1", "A=1 ls", "a+=1", "export A", ". ./env", "2>x export A=1", ">x export A=1", "ls; cd /", "ls && x=1", "ls\ncd /",
    "ls||cd /", "true&&cd /", "ls;;cd", "ls |& cd /", "! cd /", "time cd /", "{ cd /; }", "ls;(cd /)", "if true; then x=1; fi",
    "f() { :; }", "echo $((x++))", "echo ${x:=1}", "echo $x", "echo `x`", 'echo "$((x++))"', "ls &", "coproc cat", "ls | read x",
    "read<f", "exec true", "cat <<E\nx\nE\n", "'cd' /", "c'd' /", "\\cd /", "c\\d /", "ls # ; \ncd /", "kill -9 $$", "printf -v x y",
    "[ -n x ]", "ls >& x; cd /", "select x", "wait", "ls 'x", "cat <(ls)", "ls\r", "x[1]=2", "ls é", "trap true INT", "command cd /",
    "builtin cd /", "if", "test -v 'a[x=1]'", "ls | test -v a", "times", "ls 104>x", "echo >x 12<y",
)  # fmt: skip


@pytest.mark.parametrize("script", PLAIN)
def test_a_plain_command_leaves_the_state_unchanged(script: str) -> None:
    assert leaves_state(script.encode())


@pytest.mark.parametrize("script", CHANGING)
def test_a_command_that_might_change_the_state_is_recognized(script: str) -> None:
    assert not leaves_state(script.encode())


def test_a_long_script_is_not_analyzed() -> None:
    assert not leaves_state(b"ls " * 10_000)


_BETWEEN = (" | ", "||", " && ", ";", "\n", " ", "&", " ! ", "(", "{ ")
_HEADS = (
    "true", "ls", "/bin/true", "echo", "nothing", "cd", "export", "unset", "set", "declare", "alias", "umask", "shopt", "pushd", "eval",
    "readonly", "let", "trap", "local", "mapfile", "read", "printf", "enable", "getopts", "typeset", "time", "if", "for", "A=1", "shift",
    "'cd'", "\\cd", "command", "builtin", ">f", "2>f", ".", "hash", "coproc", "$x", "exit",
)  # fmt: skip
_ARGUMENTS = (
    "/", "HOME", "-e", "x", "A=1", "'x y'", '"z"', "077", "-s", "extglob", "cd /", "i=1", "true INT", "-v v", "f", "-d", "ab o", "*",
    "2>&1", ">f", "<f", "&>f", ">>f", "in a", "; then", "$(ls)", "${y:=1}", "`ls`", "\\", "#", "}", ")", "'", '"', "<<f",
)  # fmt: skip
_COMMANDS = st.tuples(st.sampled_from(_BETWEEN), st.sampled_from(_HEADS), st.lists(st.sampled_from(_ARGUMENTS), max_size=2))
_STATE = "{ declare -p; declare -f; alias -p; umask; trap -p; shopt; set -o; pwd; }"
_VOLATILE = ("_=", "PIPESTATUS", "BASH_", "RANDOM", "SRANDOM", "SECONDS", "EPOCH", "LINENO", "FUNCNAME", "OLDPWD=")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(st.lists(_COMMANDS, min_size=1, max_size=2))
def test_a_real_bash_agrees(tmp_path: Path, commands: list[tuple[str, str, list[str]]]) -> None:
    script = "true" + "".join(between + " ".join((head, *arguments)) for between, head, arguments in commands)
    assume(leaves_state(script.encode()))
    command = f"{_STATE} >&3\nprintf '\\0' >&3\neval \"$1\" </dev/null >/dev/null 2>&1\n{_STATE} >&3"
    bash = ["bash", "--norc", "--noprofile", "-c", f"exec 3>&1; {command}", "bash", script]
    before, after = subprocess.run(bash, cwd=tmp_path, capture_output=True, check=True, timeout=30).stdout.decode().split("\0")

    def lasting(state: str) -> list[str]:
        return [line for line in state.splitlines() if not any(f" {name}" in line.split("=")[0] + "=" for name in _VOLATILE)]

    assert lasting(before) == lasting(after), script


async def test_no_snapshot_is_written_after_plain_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    snapshot = BashDialect.snapshot
    monkeypatch.setattr(BashDialect, "snapshot", lambda self, number, slot: written.append(number) or snapshot(self, number, slot))  # type: ignore[func-returns-value]
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=1")
        before = list(written)
        for _ in range(5):
            assert (await shell.run("/bin/true; false | cat")).exit_code == 0
        assert written == before
        await shell.run("X=2")
        assert len(written) == len(before) + 1


@pytest.mark.parametrize(
    ("before", "plain", "after", "expected"),
    [
        ("X=1", "/bin/true", "echo $X", "1"),
        ("true() { X=changed; }", "true", "echo $X", "changed"),
        ("alias ls='X=changed'", "ls", "echo $X", "changed"),
        ("shopt -s expand_aliases; alias true='cd /usr'", "true", "pwd", "/usr"),
        ("N=0; trap 'N=$((N+1))' DEBUG", "/bin/true", "trap - DEBUG; [ $N -gt 0 ] && echo counted", "counted"),
        ("trap 'X=failed' ERR", "/bin/false", "echo $X", "failed"),
        ("N=0; PROMPT_COMMAND='N=$((N+1))'", "/bin/true", "[ $N -gt 1 ] && echo counted", "counted"),
        ("command_not_found_handle() { X=missed; }; X=1", "no-such-program", "echo $X", "1"),
        ("cd /usr; X='a\nb'; Y=(1 2)", "ls", 'echo $PWD "$X" ${Y[1]}', "/usr a\nb 2"),
        ("unset PATH; X=1", "/bin/true", "echo $X ${PATH-unset} $PWD $SHLVL", "1 unset /tmp 1"),
        ("a=(1 2); X=0", "test -v 'a[X=7]'", "echo $X", "7"),
        ("set -k -o posix", "times X=5", "echo $X", "5"),
        ("alias true='X=changed'; enable -n alias", "true", "echo $X", "changed"),
        ("trap 'X=changed' DEBUG; enable -n trap", "true", "echo $X", "changed"),
        ("trap 'echo bye' EXIT; X=7", "true", "echo $X; trap -p EXIT", "7\ntrap -- 'echo bye' EXIT"),
    ],
)
async def test_a_shell_that_is_lost_after_plain_commands_is_restored(before: str, plain: str, after: str, expected: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        for script in (before, plain, plain):
            await shell.run(script)
        lost = await shell.run("kill -9 $$")
        assert (lost.exit_code, lost.result["shell"]["restored"]) == (137, True)
        assert (await shell.run(after)).stdout.decode().strip() == expected


async def test_changes_made_by_tracing_are_restored() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=0; PS4='+ $((X++)) '; set -x")
        last = b""
        for _ in range(3):
            last = (await shell.run("true")).stderr
        await shell.run("kill -9 $$")
        assert int((await shell.run("set +x; echo $X")).stdout) > int(last.split()[-2])


async def test_many_plain_commands_between_changes_lose_nothing() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        for number in range(30):
            ids = [shell.begin(f"N={number}"), *(shell.begin("true") for _ in range(number % 4)), shell.begin("exec true")]
            for command_id in ids:
                await shell.wait(command_id)
            assert (await shell.run("echo $N")).stdout == b"%d\n" % number
