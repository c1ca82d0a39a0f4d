"""What a shell has after its process was lost: each entry of its state on its own, and exactly what could not be restored is named."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack
import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.agent.shell.carry import save_shells, start_shells
from session_agent.agent.shell.shell import Shell
from tests.support.process_channel import client
from tests.support.until import until_async

PATH = "/usr/local/bin:/usr/bin:/bin"
KEPT = "cd /usr/lib; export KEPT=yes; kept() { echo function; }; alias hi='echo alias'; umask 027; trap 'echo trapped' USR1; Z=last"
CHECK = "\\builtin pwd -P; echo $KEPT; kept; hi; umask; kill -USR1 $$; echo $Z"
RIGHT = b"/usr/lib\nyes\nfunction\nalias\n0027\ntrapped\nlast\n"

SETTINGS = {
    "a function defined under extglob": (
        "shopt -s extglob\nt() { case $1 in +([0-9]).!(txt)) echo n;; *) echo o;; esac; }\nshopt -u extglob",
        "t 1.py",
        b"o\n",
        [],
    ),
    "a function that bash prints wrongly": (
        "bad() { case $1 in (esac) echo e;; esac; }",
        "type bad 2>&1 | grep -c 'not found'",
        b"1\n",
        ["function bad"],
    ),
    "functions around one that cannot be read": (
        "a() { echo a; }; bad() { case $1 in (esac) :;; esac; }; z() { cat <<X\n}\nz () \n{ \nX\n}",
        "a; z",
        b"a\n}\nz () \n{ \n",
        ["function bad"],
    ),
    "an integer with a text": ("I='a b'; declare -i I", 'echo "$I"; declare -p I', b'a b\ndeclare -i I="a b"\n', []),
    "an integer PWD": ("declare -i PWD", "declare -p PWD", b'declare -ix PWD="/usr/lib"\n', []),
    "integer PATH": ("declare -i PATH", "echo ${PATH%%:*}", b"/usr/local/bin\n", []),
    "an upper-case variable": ("lower=text; declare -u lower", "echo $lower", b"text\n", []),
    "PWD and OLDPWD unset": ("unset PWD OLDPWD", "echo ${PWD-unset} ${OLDPWD-unset}", b"unset unset\n", []),
    "PWD with another value": ("PWD=/nonsense", "echo $PWD", b"/nonsense\n", []),
    "read-only variables": ("readonly R=1 PWD OLDPWD PATH PS1 PROMPT_COMMAND=", "(R=2) 2>/dev/null; echo $R", b"1\n", []),
    "the agent's own names": ("readonly __holdfast=5 __holdfast_status=6", "echo $__holdfast", b"5\n", []),
    "name references": (
        "declare -n ref=target; target=5; declare -n loose=nothing; declare -nr fixed=target",
        "echo $ref $fixed ${!loose}",
        b"5 5 nothing\n",
        [],
    ),
    "a circle of name references": ("declare -n one=two; declare -n two=one", "echo on", b"on\n", []),
    "arrays": (
        "A=([5]=a [9]='b c'); declare -A M=([$'k\\n']=v ['x y']=\"'\"); declare -ai N=(1 2); declare -ar E=()",
        'echo "${A[9]}${M[x y]}${N[1]}"',
        b"b c'2\n",
        [],
    ),
    "a directory stack": (
        "pushd -n /etc >/dev/null; pushd -n $'/a \\'\\\\\\n$b\"' >/dev/null",
        "\\builtin dirs -l -p",
        b"/usr/lib\n/a '\\\n$b\"\n/etc\n",
        [],
    ),
    "quotes and control characters": (
        "X=$'a\\001\\177\\xff\\n\\'q\"\\\\$`'; alias odd=$'it\\'s\\n\"x'; trap $'echo \"a\\nb\\'\"' USR2",
        "kill -USR2 $$",
        b"a\nb'\n",
        [],
    ),
    "traps that print and exit": (
        "trap 'echo d' DEBUG; set -T; trap 'exit 1' ERR; trap 'echo x' RETURN",
        "trap - DEBUG ERR RETURN",
        None,
        [],
    ),
    "tracing into the saved state": ("BASH_XTRACEFD=1; set -x", "unset BASH_XTRACEFD; set +x", None, []),
    "options": (
        "set -o pipefail -o noclobber -u; shopt -s nullglob failglob dotglob nocasematch; shopt -u sourcepath",
        "set -o | grep -c 'on$' >/dev/null; shopt -q failglob && echo y",
        b"y\n",
        [],
    ),
    "POSIX mode": ("set -o posix", "shopt -qo posix && echo posix", b"posix\n", []),
    "POSIXLY_CORRECT": ("POSIXLY_CORRECT=y; unset f; f-x() { :; } 2>/dev/null", "echo $POSIXLY_CORRECT", b"y\n", []),
    "exit on errors": ("set -e", "echo $-", None, []),
    "job control": ("set -m", "echo on", b"on\n", ["option monitor"]),
    "aliases switched off": ("shopt -u expand_aliases", "shopt -q expand_aliases || echo off; shopt -s expand_aliases", b"off\n", []),
    "exported functions": (
        "shared() { echo shared; }; export -f shared; readonly -f kept",
        "bash -c shared; declare -Fp kept",
        b"shared\ndeclare -fr kept\n",
        [],
    ),
    "a function that replaces builtins": ("eval() { :; }; declare() { echo no; }; cd() { echo no; }; set() { :; }", "cd", b"no\n", []),
    "an odd field separator": (
        "IFS=/; GLOBIGNORE='*'; CDPATH=/etc:/tmp; BASH_COMPAT=3.2",
        'printf %s "$IFS"; unset IFS GLOBIGNORE',
        b"/",
        [],
    ),
    "an exit trap": ("trap 'echo bye' EXIT", "trap - EXIT; echo on", b"on\n", []),
    "a large state": ("printf -v BIG %20000000s x; SMALL=5", "echo ${#BIG} $SMALL", b"0 5\n", ["variable BIG"]),
    "a large array": ("mapfile -t LINES_ < <(seq 900000); SMALL=5", "echo ${#LINES_[@]} $SMALL", b"0 5\n", ["variable LINES_"]),
    "an unknown locale": ("LC_ALL=xx_YY.nope", "echo $LC_ALL; unset LC_ALL", b"xx_YY.nope\n", []),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("lethal", ["exit 5", "kill -9 $$"])
async def test_no_entry_of_a_state_takes_another_with_it(setting: str, lethal: str) -> None:
    before, probe, expected, lost = SETTINGS[setting]
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run(KEPT)
        await shell.run(before)
        ended = (await shell.run(lethal)).result["shell"]
        assert (ended["restarted"], ended["restored"], ended["lost"], ended["cwd"]) == (True, True, lost, ended["cwd"])
        live = next(iter(sandbox.context.shells.values()))
        assert (ended["cwd"], os.readlink(f"/proc/{live.pid}/cwd")) == ("/usr/lib", "/usr/lib")
        outcome = await shell.run(probe)
        assert expected is None or outcome.stdout == expected, outcome.stderr
        assert (await shell.run("set +eu; " + CHECK)).stdout == RIGHT


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_directory_that_is_gone_is_named(kind: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, cwd="/usr")
        await shell.run(f"X=5; cd {gone}; rmdir {gone}")
        ended = (await shell.run("kill -9 $$")).result["shell"]
        functions = ["functions"] if kind == "sh" else []
        assert (ended["cwd"], ended["lost"]) == ("/usr", [*functions, f"directory {gone}"])
        assert (await shell.run("pwd; echo $X")).stdout == b"/usr\n5\n"


async def test_the_directory_of_a_result_is_that_of_the_shell(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/usr/lib")
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        for script, cwd in (
            ("cd /usr; PWD=/nonsense", "/usr"),
            ("unset PWD", "/usr"),
            (f"cd {link}", str(link)),
            ("PWD=/usr/lib", "/usr/lib"),
            ("cd -P /", "/"),
        ):
            assert (await shell.run(script)).result["shell"]["cwd"] == cwd, script


POSIX_STATE = """\
cd /usr/lib; export KEPT='a '"'"' b'; readonly R=1; alias hi='echo alias'; umask 027; trap 'echo trapped' USR1; set -u
f() { :; }; TEXT='two
lines'"""


async def test_a_posix_shell_keeps_what_it_can_print() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="sh")
        await shell.run(POSIX_STATE)
        for lethal in ("exit 3", "kill -9 $$", "PWD=/nonsense; exit 3"):
            ended = (await shell.run(lethal)).result["shell"]
            assert (ended["cwd"], ended["restored"], ended["lost"]) == ("/usr/lib", True, ["functions"]), lethal
            state = await shell.run('pwd; echo "$KEPT"; hi; umask; kill -USR1 $$; echo "$TEXT"; (R=2) || echo fixed; echo "$NONE"')
            assert state.stdout == b"/usr/lib\na ' b\nalias\n0027\ntrapped\ntwo\nlines\nfixed\n", state.stderr
            assert b"NONE" in state.stderr


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_shells_are_carried_to_another_agent(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, name="main")
        await shell.run("cd /usr/lib; X='a b'; alias hi='echo alias'; umask 027; bad() { case $1 in (esac) :;; esac; }")
        other = sandbox.shell(shell=kind, name="other", cwd="/usr")
        await other.run("true")
        running = other.begin("Y=now; sleep 60; echo ended")
        live = sandbox.context.shells["other"]
        assert isinstance(live, Shell)
        await until_async(live.processes, deadline_s=60, what="the sleep")
        saved = await save_shells(sandbox.context)
        other.handler.signal("KILL")
        await other.wait(running)
    async with client(env={"PATH": PATH}) as sandbox:
        started = await start_shells(sandbox.context, saved)
        lost = [("function bad",), ("command sleep",)] if kind == "bash" else [("functions",), ("functions", "command sleep")]
        assert [(each.name, each.lost, each.error) for each in started] == [("main", lost[0], None), ("other", lost[1], None)]
        copy = sandbox.shell(shell=kind, name="main")
        outcome = await copy.run('\\pwd; echo "$X"; hi; umask; echo ${Y-none}')
        assert outcome.stdout == b"/usr/lib\na b\nalias\n0027\nnone\n", outcome.stderr
        assert outcome.result["shell"] == {"cwd": "/usr/lib", "restarted": False, "restored": False}
        assert (await sandbox.shell(shell=kind, name="other").run("pwd; echo ${Y-none}")).stdout == b"/usr\nnone\n"
        assert [each.error and each.error.code for each in await start_shells(sandbox.context, saved)] == ["session_limit"] * 2


@pytest.mark.parametrize(
    "damage", [b"", b"\xc1", b"\x90", msgpack.packb({"version": 2}), msgpack.packb({"version": 1, "shells": [{"cwd": 1}]})]
)
async def test_bytes_that_are_no_saved_shells(damage: bytes) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        with pytest.raises(HoldfastError, match="saved state of shells"):
            await start_shells(sandbox.context, damage)
