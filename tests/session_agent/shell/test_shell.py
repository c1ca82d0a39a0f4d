"""Living shells beyond single commands: identity, queues, exactly-once, readers, input, aborts. Behaviour is in test_shell_cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_wire.frames import Closed, Exited, Failed, Opened, Output, Started

from session_agent.agent.commands.launch import is_busybox
from session_agent.agent.context import SandboxLimits
from session_agent.agent.process.processes import child_pids
from session_agent.agent.shell import output as shell_output
from session_agent.agent.shell import run as shell_run
from session_agent.agent.shell.driver import ReportReader
from session_agent.agent.shell.process import ShellProcess
from session_agent.agent.shell.shell import Shell
from session_agent.agent.shell.state.bash import quote
from tests.support.process_channel import LiveShell, client
from tests.support.until import until_async

PATH = os.environ["PATH"]
SHELLS = pytest.mark.parametrize("kind", ["bash", "sh"])


NAP = f"72.{os.getpid()}"
"""An argument of `sleep` that no other run of these tests on this machine uses."""


def processes_with(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text().split("\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if argument in words and state not in "ZX":
                found.append(int(entry.name))
    return found


async def test_opened_describes_the_shell() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        first = sandbox.shell(name="main")
        opened = first.channel.facts[0]
        assert isinstance(opened, Opened)
        assert (opened.info["name"], opened.info["shell"], opened.info["created"]) == ("main", "bash", True)
        assert (await first.run("echo $$")).stdout.strip() == str(opened.info["pid"]).encode()
        again = sandbox.shell(name="main")
        assert again.channel.facts[0] == Opened(7, {**opened.info, "created": False})
        await first.run("X=shared")
        assert (await again.run("echo $X")).stdout == b"shared\n"


async def test_shells_side_by_side() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        one, two = sandbox.shell(), sandbox.shell()
        await one.run("X=1; cd /usr")
        await two.run("X=2; cd /")
        slow = one.begin("sleep 0.3; echo $X $PWD")
        assert (await two.run("echo $X $PWD")).stdout == b"2 /\n"
        assert (await one.wait(slow)).stdout == b"1 /usr\n"


@SHELLS
async def test_runs_are_serial_and_in_order(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        ids = [shell.begin(f"N=$((N+1)); echo $N:{i}") for i in range(300)]
        for i, command_id in enumerate(ids):
            assert (await shell.wait(command_id)).stdout == b"%d:%d\n" % (i + 1, i)
        order = [fact.command_id for fact in shell.channel.facts if isinstance(fact, Exited)]
        assert order == ids


async def test_queue_is_bounded() -> None:
    async with client(SandboxLimits(run_queue=3), env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        ids = [shell.begin("sleep 0.05") for _ in range(5)]
        refused = await shell.wait(ids[4])
        assert refused.result["error"]["code"] == "queue_full"
        assert refused.result["exit_code"] is None
        assert (await shell.wait(ids[3])).exit_code == 0
        assert (await shell.run("echo on", command_id=ids[4])).stdout == b"on\n"


@SHELLS
async def test_a_snapshot_that_is_just_being_written_again_does_not_cost_a_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The dump was truncated to be written again when it was checked: the shell was killed, and the next run began in the dying process.
    written = ShellProcess.has_snapshot
    answers = iter([False, False, True])
    monkeypatch.setattr(ShellProcess, "has_snapshot", lambda process: next(answers, True) and written(process))
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("cd /usr")
        after = await shell.run("pwd")
    assert (after.exit_code, after.stdout, after.result["shell"]["restarted"]) == (0, b"/usr\n", False)


@SHELLS
async def test_the_processes_of_an_aborted_run_are_reaped_before_its_end_is_reported(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        others = set(child_pids())  # of this test process, not of the agent
        shell = sandbox.shell(shell=kind)
        run = shell.begin("for i in $(seq 100); do (sleep 7132 &); done; echo there; sleep 7132")
        await shell.channel.fact(Output)
        shell.handler.signal("KILL")
        assert (await shell.wait(run)).result["cause"]["reason"] == "cancelled"
        assert set(child_pids()) - others <= sandbox.context.reaper.pids


async def test_no_run_begins_in_a_process_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ShellProcess.has_snapshot
    answers = iter([False, False, False, False, True])  # the agent gives up after the fourth; a fifth would find it
    monkeypatch.setattr(ShellProcess, "has_snapshot", lambda process: next(answers, True) and written(process))
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("cd /usr")
        after = await shell.run("pwd")
    assert (after.exit_code, after.stdout, after.result["shell"]["restarted"]) == (0, b"/usr\n", True)


async def test_the_same_id_never_runs_twice(tmp_path: Path) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(name="main")
        script = f"echo x >>{tmp_path}/log; echo out"
        await shell.run(script, command_id="once")
        again = await shell.run(script, command_id="once")
        assert (again.stdout, again.started) == (b"out\n", True)
        other = sandbox.shell(name="main")
        assert (await other.run(script, command_id="once")).stdout == b"out\n"
        conflict = await other.run("echo else", command_id="once")
        assert conflict.result["error"]["code"] == "command_conflict"
        assert (tmp_path / "log").read_text() == "x\n"
        other.handler.delivered("once")
        sandbox.context.records.prune(sandbox.context.now() + 301)
        assert (await other.run(script, command_id="once")).result["error"]["code"] == "pruned"
        assert (await other.run("echo still")).stdout == b"still\n"


async def test_attach_while_it_runs() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(name="main")
        script = "echo begun; read line; echo $line"
        shell.begin(script, command_id="live", stdin="pipe")
        await shell.channel.fact(Output)
        shell.handler.drop()
        other = sandbox.shell(name="main")
        other.begin(script, command_id="live", stdin="pipe")
        other.handler.write(b"hello\n", True)
        assert (await other.wait("live")).stdout == b"begun\nhello\n"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"script": 5},
        {"script": "a\0b"},
        {"script": "true", "timeout_s": "x"},
        {"script": "true", "stdin": "tty"},
    ],
)
async def test_bad_runs_are_refused_and_the_shell_still_works(params: dict[str, object]) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        shell.handler.run("bad", dict(params))
        assert (await shell.wait("bad")).result["error"]["code"] == "invalid_argument"
        assert (await shell.run("echo ok")).stdout == b"ok\n"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"cwd": "/no/such"}, "cwd_not_found"),
        ({"shell": "zsh"}, "invalid_argument"),
        ({"user": "nobody-of-that-name"}, "user_not_found"),
        ({"name": "x" * 200}, "invalid_argument"),
    ],
)
async def test_bad_shells_are_refused(params: dict[str, object], code: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("shell", params)
        last = await channel.end()
        assert isinstance(last, Failed)
        assert last.error["code"] == code
        assert not sandbox.context.shells


@SHELLS
async def test_input_through_a_pipe(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        for _ in range(3):
            run = shell.begin("cat | wc -c", stdin="pipe")
            await shell.channel.write(b"x" * 700_000, eof=True)
            assert (await shell.wait(run)).stdout.strip() == b"700000"
        run = shell.begin("read a; echo got $a", stdin="pipe")
        shell.handler.write(b"", True)
        assert (await shell.wait(run)).stdout == b"got\n"
        run = shell.begin("exec 0<&-; echo unread", stdin="pipe")
        await shell.channel.write(b"y" * 300_000, eof=True)
        assert (await shell.wait(run)).stdout == b"unread\n"
        await shell.channel.used(3 * 700_000 + 300_000)


@SHELLS
async def test_interrupt_is_a_ctrl_c(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=1")
        # printed by the child: a Ctrl-C that comes while the shell starts it may interrupt the shell alone, as on any terminal
        run = shell.begin("sh -c 'echo begun; exec sleep 600'; echo no")
        await shell.channel.fact(Output)
        shell.handler.signal("INT")
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout) == (130, b"begun\n")
        assert outcome.result["shell"]["restarted"] is False
        assert (await shell.run("echo $X")).stdout == b"1\n"


@SHELLS
async def test_kill_aborts_the_run_and_keeps_the_shell(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        run = shell.begin(f"echo begun; while :; do setsid sleep {NAP} & sleep 0.01; done")
        await shell.channel.fact(Output)
        shell.handler.signal("KILL")
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.result["cause"]["reason"]) == (137, "cancelled")
        assert processes_with(NAP) == []
        assert (await shell.run("echo on")).stdout == b"on\n"


async def test_term_goes_to_the_children_alone() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        run = shell.begin(f"echo begun; sleep {NAP}; echo $?")
        await shell.channel.fact(Output)
        await until_async(lambda: processes_with(NAP), deadline_s=60, what="sleep")
        shell.handler.signal("TERM")
        assert (await shell.wait(run)).stdout == b"begun\n143\n"


async def test_close_ends_all_runs_and_processes_of_the_shell() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(name="main")
        other = sandbox.shell(name="main")
        run = shell.begin(f"setsid sleep {NAP} & sleep {NAP}")
        waiting = shell.begin("echo never")
        await until_async(lambda: len(processes_with(NAP)) == 2, deadline_s=60, what="two sleeps")
        shell.handler.close(False)
        last = await shell.channel.end()
        assert isinstance(last, Closed)
        assert isinstance(await other.channel.end(), Closed)
        await until_async(lambda: processes_with(NAP) == [], deadline_s=60, what="the end of the tree")
        assert not sandbox.context.shells
        ended = {fact.command_id: fact.result for fact in shell.channel.facts if isinstance(fact, Exited)}
        assert ended[run]["exit_code"] == 137
        assert ended[waiting]["exit_code"] is None
        assert ended[waiting]["cause"]["reason"] == "cancelled"


async def test_detach_leaves_the_shell_running() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(name="main")
        await shell.run("X=kept")
        shell.handler.close(True)
        assert isinstance(await shell.channel.end(), Closed)
        assert (await sandbox.shell(name="main").run("echo $X")).stdout == b"kept\n"


async def test_a_slow_reader_blocks_the_run() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("shell", {}, window=65536, reading=False)
        shell = LiveShell(channel, iter(range(100)))
        run = shell.begin("head -c 12000000 /dev/zero; echo end >&2")
        await until_async(lambda: sandbox.context.budget.held_bytes >= 2_000_000, deadline_s=60, what="a full spool")
        assert sandbox.context.budget.held_bytes < 2_500_000

        def done() -> bool:
            channel.read()
            return any(isinstance(fact, Exited) for fact in channel.facts)

        await until_async(done, deadline_s=60, what="the end of the run")
        outcome = await shell.wait(run)
        assert (len(outcome.stdout), outcome.stderr) == (12_000_000, b"end\n")
        assert (await shell.run("echo on")).stdout == b"on\n"


async def test_state_is_restored_after_the_shell_is_lost() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        await shell.run("cd /usr; cd /; cd /usr/share")
        await shell.run("export E='a b\n\"c\" $d'; L=(1 'two  2'); declare -A M=([k]='v v'); declare -i I=7; readonly R=ro")
        await shell.run("f() { local x='a b'; echo \"f:$x:$1\"; }; export -f f; alias ll='echo aliased'")
        await shell.run("shopt -s extglob nullglob; set -o pipefail; umask 027; trap 'echo usr' USR1")
        for lethal in ("kill -9 $$", "exec true", "exit 0"):
            assert (await shell.run(lethal)).result["shell"] == {
                "cwd": "/usr/share",
                "restarted": True,
                "restored": True,
                "lost": [],
            }
            state = await shell.run(
                'pwd; echo "$OLDPWD|$E|${L[1]}|${M[k]}|$I|$R"; f x; bash -c "f y"; ll; shopt -q extglob nullglob && echo opts; '
                "echo $SHELLOPTS | grep -o pipefail; umask; kill -USR1 $$"
            )
            assert state.stdout == (b'/usr/share\n/|a b\n"c" $d|two  2|v v|7|ro\nf:a b:x\nf:a b:y\naliased\nopts\npipefail\n0027\nusr\n'), (
                state.stderr
            )


async def test_a_shell_may_be_lost_any_number_of_times() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        await shell.run("set -e; X=kept")
        for _ in range(12):
            assert (await shell.run("false")).result["shell"]["restored"] is True
        assert (await shell.run("echo $X")).stdout == b"kept\n"


async def test_twenty_background_processes_that_hold_the_output_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []

    def make_fifo(uid: int | None, gid: int | None) -> str | None:
        path = make(uid, gid)
        named.extend([path] if path else [])
        return path

    make = shell_output.make_fifo
    monkeypatch.setattr(shell_output, "make_fifo", make_fifo)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        for i in range(20):
            outcome = await shell.run(f"(sleep 30; echo late) & echo {i}; echo e{i} >&2")
            assert (outcome.stdout, outcome.stderr) == (b"%d\n" % i, b"e%d\n" % i)
            await shell.run("true")
        assert len(named) >= 20
        assert len([path for path in named if os.path.lexists(path)]) < 10, "named pipes are removed soon"


async def test_started_comes_before_the_end_of_a_long_run() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        run = shell.begin("sleep 60")
        assert (await shell.channel.fact(Started)).command_id == run
        shell.handler.signal("KILL")
        await shell.wait(run)


async def test_two_hundred_time_outs() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        pid = (await shell.run("X=alive; echo $$")).stdout
        for _ in range(100):
            assert (await shell.run("sleep 60", timeout_s=0.005)).exit_code == 124
            assert (await shell.run("while :; do :; done", timeout_s=0.005)).exit_code == 124
        assert (await shell.run("echo $X; echo $$")).stdout == b"alive\n" + pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@SHELLS
async def test_a_shell_of_another_user(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, user="nobody", cwd="/")
        assert (await shell.run("id -un; X=5")).stdout == b"nobody\n"
        assert (await shell.run("sleep 73", timeout_s=0.1)).result["shell"]["restarted"] is False
        run = shell.begin("cat", stdin="pipe")
        shell.handler.write(b"in", True)
        assert (await shell.wait(run)).stdout == b"in"
        await shell.run("sleep 60 & echo x")
        assert (await shell.run("echo $X")).stdout == b"5\n"
        assert (await shell.run("exit 1")).result["shell"]["restored"] is True
        assert (await shell.run("echo $X")).stdout == b"5\n"


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_command_that_floods_the_pipe_of_reports_is_ended_by_its_time_limit(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("true")
        (live,) = sandbox.context.shells.values()
        assert isinstance(live, Shell)
        pipe = f"pipe:[{os.fstat(live.process.descriptors.status).st_ino}]"
        script = f'for f in /proc/$$/fd/*; do if [ "$(readlink $f)" = "{pipe}" ]; then echo found; cat /dev/zero >$f; fi; done'
        outcome = await shell.run(script, timeout_s=5)
        assert outcome.stdout.startswith(b"found\n")
        assert (outcome.exit_code, outcome.result["timed_out"]) == (124, True)
        assert (await shell.run("echo next")).stdout == b"next\n"


def test_reports_are_found_in_noise() -> None:
    reader = ReportReader(b"TOKEN")
    stream = b"prompt\0noiseTOKEN1 0 hB /a b\0\0TOKENx\0TOKEN2 130 - /\xff\n\0rest"
    whole = reader.feed(stream)
    single = ReportReader(b"TOKEN")
    piecewise = [report for byte in stream for report in single.feed(bytes([byte]))]
    assert whole == piecewise
    assert [(r.number, r.status, r.flags, r.cwd) for r in whole] == [(1, 0, "hB", "/a b"), (2, 130, "-", "/\ufffd\n")]


def test_a_report_with_a_number_that_no_shell_prints_is_ignored() -> None:
    """A command can find out the token and write reports. One that raised an exception would prevent the enforcement of its time limit."""
    reader = ReportReader(b"TOKEN")
    assert reader.feed(b"TOKEN%s 0 - /\0TOKEN1 %s - /\0" % (b"9" * 5000, b"9" * 30)) == []
    assert [report.status for report in reader.feed(b"TOKEN2 4 - /\0")] == [4]


def test_report_buffer_is_bounded() -> None:
    reader = ReportReader(b"TOKEN")
    for _ in range(100):
        assert reader.feed(b"x" * 10_000) == []
    assert len(reader._buffer) <= 8192


def test_a_pipe_in_place_of_the_shells_program_does_not_block(tmp_path: Path) -> None:
    """A command may put one there after the program was found."""
    os.mkfifo(tmp_path / "sh")
    assert not is_busybox(str(tmp_path / "sh"))
    held = os.open(tmp_path / "sh", os.O_RDWR)
    os.utime(tmp_path / "sh", (1, 1))  # another file, to the cache
    assert not is_busybox(str(tmp_path / "sh")), "nor one that has a writer"
    os.close(held)


def test_quote_survives_any_bytes() -> None:
    assert quote(b"it's") == b"'it'\\''s'"


async def test_a_run_whose_input_pipe_cannot_be_made_is_refused_and_the_shell_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would read nothing and succeed: a wrong result without an error."""
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        before = shell.begin("X=1; exec 3<&0", stdin="pipe")  # the shell keeps the pipe of its inputs: others need a named pipe
        shell.handler.write(b"", True)
        await shell.wait(before)
        with monkeypatch.context() as patch:
            patch.setattr(shell_run, "make_fifo", lambda uid, gid: None)
            first = shell.begin("cat | wc -c", command_id="a", stdin="pipe")
            shell.handler.write(b"12345", True)
            waiting = shell.begin("echo on $X")
            assert (await shell.wait(first)).result["error"]["code"] == "spawn_failed"
            assert (await shell.wait(waiting)).stdout == b"on 1\n"
        again = shell.begin("cat | wc -c", command_id="a", stdin="pipe")
        shell.handler.write(b"12345", True)
        assert (await shell.wait(again)).stdout.strip() == b"5"
