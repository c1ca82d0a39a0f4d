"""How a living shell behaves, as data: commands and their expected results.

Owns `CASES`. Each case runs its `before` commands and then its `script` in one fresh shell, and after it `after`, which shows that the
shell still works. Used against the agent's handler (`tests/session_agent/shell/test_shell_cases.py`) and through the whole chain.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from typing import Any

BOTH = ("bash", "sh")
BASH = ("bash",)


@dataclass(frozen=True)
class Case:
    """One behaviour. None means: not checked. `stdout` and `stderr` are exact, `stdout_has` is a part, `stderr_has` a
    regular expression that is found."""

    name: str
    script: str | bytes
    exit_code: int | None = 0
    stdout: bytes | None = None
    stderr: bytes | None = b""
    stdout_has: bytes | None = None
    stderr_has: bytes | None = None
    shells: tuple[str, ...] = BOTH
    before: tuple[str, ...] = ()
    timeout_s: float | None = None
    timed_out: bool | None = False
    restarted: bool | None = False
    restored: bool | None = None
    stdout_bytes: int | None = None
    cwd: str | None = None
    after: str = "echo still here"
    after_stdout: bytes = b"still here\n"
    env: dict[str, str] = field(default_factory=dict)
    """The shell's environment."""
    limit_s: float = 30.0
    """The result must arrive within this time: a limit for the slowest machines, not a measure of speed."""


def _case(name: str, script: str | bytes, **expected: Any) -> Case:
    if expected.get("stderr_has") is not None:
        expected.setdefault("stderr", None)
    case = Case(name, script, **expected)
    if not isinstance(script, str) or len(script) > 1000:
        return case
    return replace(case, script=_own(script), before=tuple(map(_own, case.before)), after=_own(case.after))


def _restarted_by_interrupted_wait() -> bool | None:
    """False, or None (either is right) where the machine's bash is 5.3, which ends when its ``wait`` is interrupted (decision 0005)."""
    bash = shutil.which("bash")
    version = subprocess.run([bash, "--version"], capture_output=True, text=True, check=True).stdout if bash else ""
    return None if "version 5.3." in version else False


def _own(script: str) -> str:
    """The script with file names of this process only, because other runs on this machine may test the same cases."""
    return script.replace("/tmp/holdfast-case", f"/tmp/holdfast-case-{os.getpid()}")


CASES: tuple[Case, ...] = (
    # basic behaviour of every shell
    _case("true", "true", stdout=b""),
    _case("false", "false", exit_code=1, stdout=b""),
    _case("output", "echo out", stdout=b"out\n"),
    _case("streams stay apart", "echo out; echo err >&2; echo out2", stdout=b"out\nout2\n", stderr=b"err\n"),
    _case("no newline at the end", "printf abc", stdout=b"abc"),
    _case("status of a subshell", "(exit 7)", exit_code=7),
    _case("status of the last command", "false; true", exit_code=0),
    _case("command not found", "no-such-command-anywhere", exit_code=127, stderr_has=b"not found"),
    _case("not executable", "/etc/passwd", exit_code=126, stderr_has=b"ermission denied"),
    _case("a signal shows as 128+n", "sh -c 'kill -TERM $$'", exit_code=143, stderr=None),
    _case("empty script", "", stdout=b""),
    _case("only a comment", "# nothing", stdout=b""),
    _case("only blank lines", "\n\n  \n", stdout=b""),
    _case("several lines", "echo one\necho two\necho three", stdout=b"one\ntwo\nthree\n"),
    _case("single quotes", """echo 'it'"'"'s' "a 'b' c" """, stdout=b"it's a 'b' c\n"),
    _case("here document", "cat <<EOF\n$((40+2))\nEOF", stdout=b"42\n"),
    _case("quoted here document", "cat <<'EOF'\n$HOME 'x' \"y\"\nEOF", stdout=b"$HOME 'x' \"y\"\n"),
    _case("pipeline", "printf 'b\\na\\n' | sort | tr a-z A-Z", stdout=b"A\nB\n"),
    _case("command substitution", 'echo "[$(printf x; printf y)]"', stdout=b"[xy]\n"),
    _case("unicode", "echo 'grüße 🦀'", stdout="grüße 🦀\n".encode()),
    _case("backslashes", r"""printf '%s\n' 'a\nb' "c\\d" """, stdout=b"a\\nb\nc\\d\n"),
    _case("a line that ends in a backslash", "echo a\\\nb", stdout=b"ab\n"),
    # state that is kept between commands
    _case("directory survives", "pwd", before=("cd /usr",), stdout=b"/usr\n", cwd="/usr"),
    _case("variable survives", 'echo "$X"', before=("X='a  b'",), stdout=b"a  b\n"),
    _case("export survives", "sh -c 'echo $Y'", before=("export Y=exported",), stdout=b"exported\n"),
    _case("function survives", "greet you", before=("greet() { echo hello $1; }",), stdout=b"hello you\n"),
    _case("alias survives", "say hi", before=("alias say='echo alias:'",), stdout=b"alias: hi\n"),
    _case("unset survives", 'echo "${X-gone}"', before=("X=1", "unset X"), stdout=b"gone\n"),
    _case("umask survives", "umask", before=("umask 027",), stdout_has=b"027"),
    _case("positional parameters survive", 'echo "$#:$2"', before=("set -- a 'b c'",), stdout=b"2:b c\n"),
    _case("exit status survives", "echo $?", before=("(exit 9)",), stdout=b"9\n"),
    _case("array survives", 'echo "${A[1]}${#A[@]}"', before=("A=(x 'y z')",), stdout=b"y z2\n", shells=BASH),
    _case("associative array survives", 'echo "${M[k]}"', before=("declare -A M=([k]=v)",), stdout=b"v\n", shells=BASH),
    _case("shopt survives", "shopt -q extglob && echo yes", before=("shopt -s extglob",), stdout=b"yes\n", shells=BASH),
    _case("cd - works", "cd - >/dev/null; pwd", before=("cd /usr", "cd /"), stdout=b"/usr\n"),
    _case("sourced file", ". /tmp/holdfast-case-rc; echo $RC", before=("echo RC=7 >/tmp/holdfast-case-rc",), stdout=b"7\n"),
    _case("trap survives", "kill -USR1 $$; echo done", before=("trap 'echo caught' USR1",), stdout=b"caught\ndone\n"),
    _case("a tool that changes PS1", "echo ok", before=("PS1='(venv) > '; PS2='more> '",), stdout=b"ok\n"),
    # the agent's own machinery is not visible
    _case("no prompt, no job notice", "sleep 0 & wait; echo x", stdout=b"x\n"),
    _case("background start is silent", "sleep 0.01 &", stdout=b""),
    _case(
        "private descriptors are closed",
        "ls /proc/self/fd",
        stdout=b"0\n1\n2\n3\n",
    ),
    _case("stdin is empty", "cat; echo end", stdout=b"end\n"),
    _case("read meets the end of input", "read x; echo $?", stdout=b"1\n"),
    _case("no history expansion", "echo 'a!b' \"c!d\"", stdout=b"a!b c!d\n"),
    _case("set -x goes to stderr alone", "set -x; echo hi; set +x", stdout=b"hi\n", stderr_has=rb"\+ echo hi"),
    # hostile commands
    _case(
        "exit",
        "cd /usr; X=5; exit 3",
        exit_code=3,
        restarted=True,
        restored=True,
        cwd="/usr",
        after="echo $X; pwd",
        after_stdout=b"5\n/usr\n",
    ),
    _case("exit in a function", "f() { exit 4; }; f; echo no", exit_code=4, stdout=b"", restarted=True, restored=True),
    _case("exec", "exec true", restarted=True, restored=True, before=("X=6",), after="echo $X", after_stdout=b"6\n"),
    _case("exec a program that talks", "exec echo replaced", stdout=b"replaced\n", restarted=True),
    _case("exec nothing there", "exec /no/such/program", exit_code=None, stderr=None, restarted=None),
    _case("set -e", "set -e; false; echo no", exit_code=1, stdout=b"", restarted=None, after="set +e; echo still here"),
    _case(
        "set -e stays set", "false; echo no", before=("set -e",), exit_code=1, stdout=b"", restarted=None, after="set +e; echo still here"
    ),
    _case("set -u", "set -u; echo $not_set", exit_code=None, stdout=b"", stderr=None, restarted=None, after="set +u; echo still here"),
    _case("set -n", "set -n", exit_code=None, stderr=None, restarted=None, limit_s=60),
    _case(
        "set -C",
        "echo two > /tmp/holdfast-case-kept; cat /tmp/holdfast-case-kept",
        before=("echo one >| /tmp/holdfast-case-kept; set -C",),
        stdout=b"one\n",
        stderr_has=b"exist",
        after="set +C; echo still here",
    ),
    _case("set -f and IFS", "IFS=x; set -f; v=axb; echo $v *", stdout=b"a b *\n"),
    _case("return at top level", "return 5; echo no", exit_code=5, stdout=b"", restarted=False),
    _case("break at top level", "break; echo on", stdout=b"on\n", stderr=None),
    _case("unterminated quote", "echo 'open", exit_code=2, stdout=b"", stderr_has=b"nterminated|EOF"),
    _case("unterminated double quote", 'echo "open', exit_code=2, stdout=b"", stderr_has=b"nterminated|EOF"),
    _case("unterminated here document", "cat <<EOF\nline", stdout_has=b"line", stderr=None),
    _case("unterminated if", "if true; then echo x", exit_code=2, stdout=b"", stderr_has=b"yntax error"),
    _case("stray parenthesis", "echo )", exit_code=2, stdout=b"", stderr_has=b"yntax error"),
    _case("syntax error keeps earlier lines", "echo one\nif", exit_code=2, stdout=b"one\n", stderr=None),
    _case("closing stdout", "exec 1>&-; echo lost; true", exit_code=0, stdout=b"", stderr=None),
    _case("closing everything", "exec 0<&- 1>&- 2>&-; true", stdout=b"", stderr=b""),
    _case("closing stderr and failing", "exec 2>&-; false", exit_code=1, stdout=b""),
    _case(
        "exec 2>file",
        "exec 2>/tmp/holdfast-case-err; echo gone >&2; cat /tmp/holdfast-case-err",
        stdout=b"gone\n",
        after="echo back >&2; echo still here",
    ),
    _case("exec >/dev/null", "exec >/dev/null; echo gone", stdout=b""),
    _case("high descriptors of the user", "exec 5>/tmp/holdfast-case-5; echo x >&5; exec 5>&-; cat /tmp/holdfast-case-5", stdout=b"x\n"),
    _case(
        "kill -9 itself",
        "kill -9 $$",
        exit_code=137,
        restarted=True,
        restored=True,
        before=("X=8; cd /usr",),
        after="echo $X; pwd",
        after_stdout=b"8\n/usr\n",
    ),
    _case("kill -TERM itself", "trap - TERM; kill -TERM $$; echo alive", stdout=None, exit_code=None, stderr=None, restarted=None),
    _case("trap '' TERM INT", "trap '' TERM INT; echo set", stdout=b"set\n"),
    _case(
        "ignoring the interrupt",
        "trap '' INT; while :; do sleep 1; done",
        timeout_s=1.0,
        exit_code=124,
        timed_out=True,
        stdout=b"",
        stderr=None,
        restarted=True,
        restored=True,
    ),
    _case(
        "endless builtin loop", "while :; do :; done", timeout_s=0.2, exit_code=124, timed_out=True, stdout=b"", stderr=None, restarted=None
    ),
    _case(
        "endless loop of programs",
        "while :; do sleep 0.01; done",
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stdout=b"",
        stderr=None,
        restarted=None,
    ),
    _case(
        "time-out keeps partial output",
        "echo partial; sleep 60; echo no",
        timeout_s=1.0,
        exit_code=124,
        timed_out=True,
        stdout=b"partial\n",
        stderr=None,
        restarted=False,
    ),
    _case(
        "time-out keeps the state",
        "cd /usr; sleep 60",
        before=("X=3",),
        timeout_s=1.0,
        exit_code=124,
        timed_out=True,
        stderr=None,
        restarted=False,
        after="echo $X; pwd",
        after_stdout=b"3\n/usr\n",
    ),
    _case("flood with a time-out", "yes", timeout_s=0.2, exit_code=124, timed_out=True, stdout=None, stderr=None, restarted=False),
    _case(
        "a stopped job",
        "sleep 60 & kill -STOP $!; wait",
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stderr=None,
        restarted=_restarted_by_interrupted_wait(),
    ),
    _case(
        "the shell stops itself",
        "kill -STOP $$; echo no",
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stdout=None,
        stderr=None,
        restarted=None,
    ),
    _case(
        "a child that ignores everything",
        "sh -c \"trap '' INT TERM HUP; sleep 60; sleep 60\"",
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stderr=None,
        restarted=None,
    ),
    _case(
        "a child in a session of its own",
        "setsid sh -c 'sleep 60; echo no'",
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stdout=b"",
        stderr=None,
        restarted=False,
    ),
    _case("background holder of stdout", "sleep 60 & echo started", stdout=b"started\n", after="echo clean", after_stdout=b"clean\n"),
    _case(
        "background chatter stays out of the next",
        "rm -f /tmp/holdfast-case-go; (until test -e /tmp/holdfast-case-go; do sleep 0.01; done; echo late) & echo now",
        stdout=b"now\n",
        after=": >/tmp/holdfast-case-go; sleep 0.2; echo mine",
        after_stdout=b"mine\n",
    ),
    _case(
        "background of an earlier run survives a time-out",
        "sleep 60",
        before=("sleep 50 & B=$!",),
        timeout_s=0.2,
        exit_code=124,
        timed_out=True,
        stderr=None,
        restarted=False,
        after="kill -0 $B && echo lives; kill $B",
        after_stdout=b"lives\n",
    ),
    _case("daemon", "setsid sh -c 'sleep 0.1' >/dev/null 2>&1 & echo up", stdout=b"up\n"),
    _case(
        "removed directory",
        "mkdir -p /tmp/holdfast-case-d; cd /tmp/holdfast-case-d; rmdir /tmp/holdfast-case-d; true",
        stderr=None,
        after="cd /; echo still here",
    ),
    _case(
        "removed directory, then exit",
        "mkdir -p /tmp/holdfast-case-e; cd /tmp/holdfast-case-e; rmdir /tmp/holdfast-case-e; exit 2",
        exit_code=2,
        stderr=None,
        restarted=True,
    ),
    _case("NUL and invalid UTF-8", r"printf 'a\000b\377\376c'", stdout=b"a\x00b\xff\xfec"),
    _case("all bytes", "head -c 70000 /dev/zero", stdout=b"\0" * 70000),
    _case("10 MB line", "head -c 10000000 /dev/zero | tr '\\0' x", stdout_bytes=10_000_000, limit_s=60),
    _case("10 MB script", "X='" + "x" * 10_000_000 + "'; echo ${#X}", stdout=b"10000000\n", limit_s=120, after="unset X; echo still here"),
    _case("long argument list", "set -- $(seq 1 20000); echo $#", stdout=b"20000\n", after="set --; echo still here"),
    _case("big environment", "export BIG=$(head -c 100000 /dev/zero | tr '\\0' y); sh -c 'echo ${#BIG}'", stdout=b"100000\n"),
    _case("unset PATH", "unset PATH; echo ok", stdout=b"ok\n"),
    _case("unset everything", "unset PATH HOME PWD OLDPWD IFS PS1 PS4; echo ok", stdout=b"ok\n"),
    _case("TMPDIR that is gone", "export TMPDIR=/no/such; cat <<EOF\nx\nEOF", stdout=b"x\n"),
    _case("function printf", "printf() { :; }; echo ok", stdout=b"ok\n", restarted=None),
    _case("function echo", "echo() { command printf 'mine\\n'; }; echo ok; unset -f echo", stdout=b"mine\n"),
    _case("function builtin", "builtin() { :; }; echo ok", stdout=b"ok\n", restarted=None, limit_s=60),
    _case("status after function builtin", "builtin() { :; }; (exit 3)", exit_code=3, restarted=None, limit_s=60),
    _case("function command", "command() { :; }; echo ok", stdout=b"ok\n", restarted=None, limit_s=60),
    _case("alias eval", "alias eval='echo no' source='echo no' builtin='echo no' printf='echo no'", stdout=b""),
    _case(
        "function eval and source",
        "eval() { echo no; }; source() { echo no; }; set() { echo no; }; true",
        stdout=b"",
        shells=BASH,
        restarted=None,
        limit_s=60,
    ),
    _case("enable -n", "enable -n printf eval source; echo ok", stdout=b"ok\n", shells=BASH, restarted=None, limit_s=60),
    _case("readonly variables", "readonly R=1; R=2; echo no", exit_code=None, stdout=None, stderr=None, restarted=None),
    _case("POSIXLY_CORRECT", "POSIXLY_CORRECT=1; echo ok", stdout=b"ok\n", shells=BASH),
    _case(
        "DEBUG trap",
        "trap 'echo dbg' DEBUG; true",
        stdout=None,
        shells=BASH,
        after="trap - DEBUG; echo still here",
        after_stdout=b"still here\n",
    ),
    _case("ERR trap", "trap 'echo failed' ERR; false; true", stdout=b"failed\n", shells=BASH, after="trap - ERR; echo still here"),
    _case("EXIT trap", "trap 'echo bye' EXIT; exit 6", exit_code=6, stdout=None, restarted=True),
    _case(
        "RETURN trap",
        "trap 'echo ret' RETURN; f() { :; }; set -T; f",
        stdout=None,
        shells=BASH,
        after="trap - RETURN; set +T; echo still here",
        after_stdout=b"still here\n",
    ),
    _case(
        "extdebug refuses commands",
        "shopt -s extdebug; trap 'false' DEBUG; echo no",
        exit_code=None,
        stdout=None,
        stderr=None,
        shells=BASH,
        restarted=None,
        limit_s=60,
        after="true",
        after_stdout=b"",
    ),
    _case("PROMPT_COMMAND", "PROMPT_COMMAND='echo prompt'; true", stdout=b"", shells=BASH),
    _case("pipefail", "set -o pipefail; false | true", exit_code=1, shells=BASH, after="set +o pipefail; echo still here"),
    _case(
        "coproc",
        "coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} x; echo $x",
        stdout=b"hi\n",
        shells=BASH,
        after="kill $COPROC_PID; echo still here",
    ),
    _case("process substitution", "cat <(echo sub)", stdout=b"sub\n", shells=BASH),
    _case("ulimit -n 21", "ulimit -n 21; echo ok", stdout=b"ok\n", stderr=None, restarted=None),
    _case("ulimit -n 20", "ulimit -n 20; echo ok", stdout=b"ok\n", stderr=None, restarted=None),  # too few for the next run in sh
    _case("ulimit -f 0", "ulimit -f 0; echo ok", stdout=b"ok\n", stderr=None, exit_code=None, restarted=None),
    _case("stty without a terminal", "stty -a", exit_code=1, stdout=b"", stderr_has=b"stty"),
    _case(
        "suspend",
        "suspend 2>/dev/null; echo on",
        stdout=None,
        exit_code=None,
        stderr=None,
        shells=BASH,
        timeout_s=0.3,
        timed_out=None,
        restarted=None,
    ),
    _case(
        "deep recursion",
        "f() { f; }; f",
        exit_code=None,
        stdout=None,
        stderr=None,
        timeout_s=5,
        timed_out=None,
        restarted=None,
        limit_s=60,
        shells=BASH,
    ),
    _case("segmentation fault is reported", "sh -c 'kill -SEGV $$'", exit_code=139, stderr=None),
    _case("wait for a background job", "(sleep 0.05; exit 3) & wait $!", exit_code=3),
    _case("HOME is set", 'test -n "$HOME" && echo ok', stdout=b"ok\n"),
    _case("environment of the shell", "echo $CASE_ENV", env={"CASE_ENV": "given"}, stdout=b"given\n"),
)
"""All cases; names are unique."""
