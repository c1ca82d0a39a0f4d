"""Prompts, traps and variables that read, print, sleep, exit or redirect: no run is lost or reported without having run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.process_channel import client

PATH = os.environ["PATH"]

READING = (
    "PROMPT_COMMAND='read -t 0.05 x'", "PROMPT_COMMAND='read x'", "PROMPT_COMMAND='read -d R -t 0.05 x'", "PROMPT_COMMAND='read -n 5 x'",
    "PROMPT_COMMAND=('read -t 0.05 x' 'read -t 0.05 y')", "PROMPT_COMMAND='mapfile lines'", "PROMPT_COMMAND='mapfile -n 1 lines'",
    "PROMPT_COMMAND='cat >/dev/null'", "PROMPT_COMMAND='head -c 7 >/dev/null'", "PROMPT_COMMAND='timeout 0.05 cat >/dev/null'",
    "PS1='$(cat)'", "PS1='$(timeout 0.05 cat)'", "PS1='$(read x; echo $x)$ '", "PS0='$(cat)'", "PS2='$(cat)'", "PS4='$(cat)'",
    "trap 'read -t 0.05 x' DEBUG", "trap 'cat >/dev/null' CHLD", "trap 'read -t 0.05 x' ERR", "trap 'cat' RETURN", "trap 'cat' EXIT",
)  # fmt: skip
REDIRECTING = (
    "PROMPT_COMMAND='exec 0</dev/null'", "PROMPT_COMMAND='exec 0<&-'", "PROMPT_COMMAND='exec 2>&-'", "exec 0</dev/null",
    "trap 'exec 0</dev/null' DEBUG", "PROMPT_COMMAND='exec 3</dev/null'",
    "PROMPT_COMMAND='exec >/dev/null'", "PROMPT_COMMAND='exec 1>&-'", "PROMPT_COMMAND='exec 1>&2'", "PS1='${x=$(exec >&-)}'",
)  # fmt: skip
PRINTING = (
    "PROMPT_COMMAND='echo prompt'", "PROMPT_COMMAND='printf \"1 0 h /\\0\"'", "PROMPT_COMMAND='seq 2000'", "PS1='$(seq 2000)'",
    "PS1='\\u@\\h:\\w\\$ '", "PROMPT_COMMAND='false'", "PROMPT_COMMAND=')'", "PROMPT_COMMAND='((1/0))'", "PROMPT_COMMAND='set -- a b'",
    "set -u; PROMPT_COMMAND='echo $undefined'", "PROMPT_COMMAND='break; continue; return 3'", "IFS=/; PS1='a/b '", "IFS=-t9; TMOUT=9",
    "IFS=023456789",
)  # fmt: skip
SLEEPING = (
    "PROMPT_COMMAND='sleep 0.2'",
    "PS1='$(sleep 0.2)'",
    "PROMPT_COMMAND='sleep 30 &'",
    "TMOUT=1",
    "readonly TMOUT=1",
    "PROMPT_COMMAND='wait'",
)


async def _check(setting: str, kind: str, *, restarts: bool = False) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, cwd="/usr")
        await shell.run("KEPT=1")
        await shell.run(setting, timeout_s=20)
        for number in range(4):
            outcome = await shell.run(f"echo {number}; pwd; echo $KEPT; (exit 4)", timeout_s=20)
            assert (outcome.exit_code, outcome.stdout.split(b"\n")[:3]) == (4, [b"%d" % number, b"/usr", b"1"]), (setting, number, outcome)
            assert restarts or not outcome.result["shell"]["restarted"], (setting, number)


@pytest.mark.parametrize("setting", READING + REDIRECTING + PRINTING + SLEEPING)
async def test_a_prompt_cannot_touch_commands(setting: str) -> None:
    await _check(setting, "bash")


@pytest.mark.parametrize("setting", ["PROMPT_COMMAND='exit 0'", "PROMPT_COMMAND='exec true'", "PROMPT_COMMAND='kill -9 $$'"])
async def test_a_prompt_that_ends_the_shell_loses_no_run(setting: str) -> None:
    await _check(setting, "bash", restarts=True)


@pytest.mark.parametrize(
    "setting", ["PS1='$(cat)'", "PS1='$(read x; echo $x)'", "PS2='$(cat)'", "exec 0</dev/null", "set -u; PS1='$(sleep 0.2)'"]
)
async def test_a_prompt_of_sh_cannot_touch_commands(setting: str) -> None:
    await _check(setting, "sh")


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_breaking_out_of_nothing_changes_nothing(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        for script in ("break", "continue 3", "return 3", "for x in 1 2; do break 5; done"):
            await shell.run(script, timeout_s=20)
        assert (await shell.run("echo kept", timeout_s=20)).stdout == b"kept\n"


async def test_more_runs_than_the_lines_of_the_loop() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        pid = (await shell.run("echo $$")).stdout
        for number in range(1100):
            assert (await shell.run(f"X={number}; (exit {number % 7})")).exit_code == number % 7
        assert (await shell.run("echo $$")).stdout == pid


async def test_an_sh_whose_rc_file_exits_is_lost_not_cancelled(tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("exit 5\n")
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="sh", env={"ENV": str(tmp_path / "rc")})
        outcome = await shell.run("echo ran", timeout_s=20)
        assert outcome.result["error"]["code"] == "shell_lost", outcome


TRAPS = tuple(
    f"trap '{action}' {when}"
    for action in ("sleep 0.1", "echo printed; echo printed >&2", "exec </dev/null", "exec 3</dev/null", "read x; cat")
    for when in ("DEBUG", "ERR", "CHLD", "EXIT")
)


@pytest.mark.parametrize("setting", TRAPS)
async def test_a_trap_cannot_touch_commands(setting: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash", cwd="/usr")
        await shell.run("KEPT=1")
        await shell.run(setting, timeout_s=20)
        for number in range(3):
            outcome = await shell.run(f"echo {number}; pwd; echo $KEPT; (exit 4)", timeout_s=20)
            lines = [line for line in outcome.stdout.split(b"\n") if line not in (b"", b"printed")]
            assert (outcome.exit_code, lines) == (4, [b"%d" % number, b"/usr", b"1"]), (setting, number, outcome)
            # One that sleeps before each control line may make the shell too slow for its time limits; that is reported.
            assert "sleep" in setting or not outcome.result["shell"]["restarted"], (setting, number)


@pytest.mark.parametrize("when", ["DEBUG", "ERR", "CHLD", "EXIT"])
async def test_a_trap_that_ends_the_shell_loses_nothing_else(when: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash", cwd="/usr")
        await shell.run("KEPT=1; f() { :; }")
        outcome = await shell.run(f"trap 'exit 9' {when}; set -T", timeout_s=20)
        for number in range(3):
            lost = outcome.result["shell"].get("lost", [])
            assert lost in ([], [f"trap {when}"]), outcome
            outcome = await shell.run(f"echo {number}; echo $KEPT; (exit 4)", timeout_s=20)
            whole = (outcome.exit_code, outcome.stdout) == (4, b"%d\n1\n" % number)
            assert whole or outcome.result["shell"]["restarted"], (when, number, outcome)
            assert outcome.exit_code in (4, 9), (when, number, outcome)
        assert (await shell.run("trap - DEBUG ERR CHLD EXIT; echo $KEPT; pwd", timeout_s=20)).exit_code in (0, 9)


RC_FILES = ("seq 2000; echo printed >&2", "sleep 0.3", "exec 2>&-", "set -u", "trap cat EXIT")
EATING = ("read x", "cat", "exec </dev/null", "PS1='$(cat)'; PS2='$(cat)'")
"""These take from the standard input what makes an ``sh`` begin to read its commands."""


@pytest.mark.parametrize("rc", RC_FILES + EATING)
@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_an_rc_file_fabricates_nothing(rc: str, kind: str, tmp_path: Path) -> None:
    for name in ("rc", ".bashrc", ".profile", ".bash_profile"):
        (tmp_path / name).write_text(rc + "\n")
    env = {"ENV": str(tmp_path / "rc"), "BASH_ENV": str(tmp_path / "rc"), "HOME": str(tmp_path)}
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, cwd="/usr", env=env)
        for number in range(2):
            outcome = await shell.run(f"echo {number}; pwd; (exit 4)", timeout_s=3)
            if rc in EATING and kind == "sh":
                result = outcome.result
                ran = (outcome.exit_code, outcome.stdout) == (4, b"%d\n/usr\n" % number)
                assert ran or "error" in result or result["timed_out"], (rc, number, outcome)
                return
            assert (outcome.exit_code, outcome.stdout) == (4, b"%d\n/usr\n" % number), (rc, number, outcome)
            assert not outcome.result["shell"]["restarted"], (rc, number)
