"""The reaper and the tags of process trees, on real processes."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import KEPT_COMMAND_BYTES, KEPT_SANDBOX_BYTES

from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.records import Records
from session_agent.agent.output.spool import Budget, Spool
from session_agent.agent.process.fork import Launch, Stdio
from session_agent.agent.process.process_tree import Tags, TreeKill, has_unowned_children, mark_run, members, owned_by, read_tag
from session_agent.agent.process.processes import Reaper, exit_outcome, signal_number
from session_agent.agent.process.start_errors import CannotExecuteError
from tests.support.own_process import in_own_process
from tests.support.requires import requires
from tests.support.until import until_async

LAUNCH = Launch("/", {"PATH": os.environ["PATH"]})


@pytest.fixture
async def reaper() -> object:
    reaper = Reaper(oom_score_adj=500)
    reaper.start()
    yield reaper
    await until_async(lambda: not reaper.pids, deadline_s=60, what="all children")
    reaper.stop()


def null() -> Stdio:
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return Stdio(fd, fd, fd)


async def exit_status_of(reaper: Reaper, *argv: str, tag: int = 0) -> int:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stdio = null()
    reaper.spawn(argv, LAUNCH, stdio, future.set_result, tag=tag)
    os.close(stdio.stdin)
    return await future


async def test_every_exit_reaches_its_owner(reaper: Reaper) -> None:
    statuses = await asyncio.gather(*(exit_status_of(reaper, "sh", "-c", f"exit {n}") for n in range(40)))
    assert [exit_outcome(status) for status in statuses] == [(n, None) for n in range(40)]
    assert exit_outcome(await exit_status_of(reaper, "sh", "-c", "kill -KILL $$")) == (137, "KILL")


async def test_a_child_that_other_code_started_is_not_reaped(reaper: Reaper) -> None:
    foreign = subprocess.Popen(["sh", "-c", "exit 23"])
    assert await exit_status_of(reaper, "true") == 0
    assert await exit_status_of(reaper, "sh", "-c", "exit 1") == 256
    assert await asyncio.to_thread(foreign.wait) == 23


async def test_orphans_are_reaped(reaper: Reaper, tmp_path: Path) -> None:
    await exit_status_of(reaper, "sh", "-c", f"(sleep 0.02; exit 5) & echo $! >{tmp_path}/pid; exec true")
    orphan = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert has_unowned_children(reaper.pids)
    await until_async(lambda: not orphan.exists(), deadline_s=60, what="the end of the orphan")


async def test_many_orphans_are_reaped_together(reaper: Reaper, tmp_path: Path) -> None:
    script = f"for i in $(seq 50); do (sleep 0.02) & echo $! >>{tmp_path}/pids; done; exec true"
    await exit_status_of(reaper, "sh", "-c", script)
    orphans = [Path("/proc") / pid for pid in (tmp_path / "pids").read_text().split()]
    await until_async(lambda: not any(o.exists() for o in orphans), deadline_s=60, what="the end of fifty orphans")


async def test_children_have_the_given_oom_score_adj(reaper: Reaper) -> None:
    reader, writer = os.pipe()
    stdio = Stdio(null().stdin, writer, writer)
    done = asyncio.Event()
    reaper.spawn(["sh", "-c", "sleep 0.05; cat /proc/self/oom_score_adj"], LAUNCH, stdio, lambda _: done.set())
    os.close(writer)
    await done.wait()
    assert os.read(reader, 100) == b"500\n"
    os.close(reader)


async def test_errors_of_spawn_name_the_cause(reaper: Reaper) -> None:
    stdio = null()
    with pytest.raises(CannotExecuteError) as missing:
        reaper.spawn(["no-such-program"], LAUNCH, stdio, print)
    assert missing.value.exit_code == 127
    with pytest.raises(CannotExecuteError) as denied:
        reaper.spawn(["/etc/passwd"], LAUNCH, stdio, print)
    assert denied.value.exit_code == 126
    with pytest.raises(HoldfastError, match="working directory '/no/such'"):
        reaper.spawn(["true"], Launch("/no/such", LAUNCH.env), stdio, print)
    with pytest.raises(HoldfastError, match="too long for the kernel"):
        reaper.spawn(["true", "x" * 200_000], LAUNCH, stdio, print)
    assert resource.getrlimit(15)[0] == resource.RLIM_INFINITY
    assert not reaper.pids


@requires("root")
@in_own_process
async def test_children_of_an_agent_with_raised_priority_have_normal_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    reaper = Reaper()
    reaper.start()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stdio = null()
    pid = reaper.spawn(["sleep", "600"], LAUNCH, stdio, ended.set_result)
    os.close(stdio.stdin)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    os.kill(pid, signal.SIGKILL)
    await ended
    reaper.stop()


async def test_the_tag_survives_setsid_exec_and_an_empty_environment(reaper: Reaper) -> None:
    tag = Tags().owner()
    script = "env -i setsid sh -c 'setsid sleep 91 & exec sleep 91' & sleep 91"
    done = asyncio.Event()
    pid = reaper.spawn(["bash", "-c", script], LAUNCH, null(), lambda _: done.set(), tag=tag)
    assert read_tag(pid) == tag
    await until_async(lambda: len(members(owned_by(tag))) == 4, deadline_s=60, what="the tree")
    assert members(owned_by(Tags().owner())) == []
    killed = asyncio.Event()
    TreeKill(owned_by(tag), killed.set, exclude=(pid,))
    await killed.wait()
    assert members(owned_by(tag)) in ([pid], [])
    TreeKill(owned_by(tag), killed.set)
    await done.wait()
    assert read_tag(os.getpid()) is None


async def test_runs_are_distinguished_by_their_tags(reaper: Reaper) -> None:
    tag = Tags().owner()
    reader, writer = os.pipe()
    done = asyncio.Event()
    pid = reaper.spawn(["bash"], LAUNCH, Stdio(reader, 2, 2), lambda _: done.set(), tag=tag)
    os.close(reader)
    assert mark_run(pid, tag | 1)
    os.write(writer, b"sleep 92 &\n")
    await until_async(lambda: len(members(lambda t: t == tag | 1, exclude=(pid,))) == 1, deadline_s=60, what="run 1")
    assert mark_run(pid, tag | 2)
    os.write(writer, b"sleep 92 &\n")
    await until_async(lambda: len(members(lambda t: t == tag | 2, exclude=(pid,))) == 1, deadline_s=60, what="run 2")
    assert len(members(owned_by(tag))) == 3
    os.close(writer)
    TreeKill(owned_by(tag), lambda: None)
    await done.wait()


async def test_marking_a_run_keeps_a_lowered_hard_limit(reaper: Reaper) -> None:
    tag = Tags().owner()
    done = asyncio.Event()
    pid = reaper.spawn(["sleep", "94"], LAUNCH, null(), lambda _: done.set(), tag=tag)
    lowered = (tag | 1) + 5
    resource.prlimit(pid, resource.RLIMIT_RTTIME, (tag, lowered))
    assert mark_run(pid, tag | 1)
    assert resource.prlimit(pid, resource.RLIMIT_RTTIME) == (tag | 1, lowered)
    TreeKill(owned_by(tag), lambda: None)
    await done.wait()


async def test_processes_without_a_tag_are_found_by_ancestry(reaper: Reaper) -> None:
    done = asyncio.Event()
    pid = reaper.spawn(["sh", "-c", "sleep 93 & sleep 93"], LAUNCH, null(), lambda _: done.set())
    await until_async(lambda: len(members(lambda _: False, roots=(pid,))) == 3, deadline_s=60, what="three processes")
    killed = asyncio.Event()
    TreeKill(lambda _: False, killed.set, roots=(pid,))
    await done.wait()
    await killed.wait()


def test_all_children_are_listed() -> None:
    """One read of /proc/PID/task/TID/children returns one page of them."""
    script = (
        "import os; from session_agent.agent.process.process_tree import has_unowned_children\n"
        "pids = [os.fork() or os._exit(0) for _ in range(1500)]\n"
        "assert has_unowned_children(frozenset(pids[:-1])); assert not has_unowned_children(frozenset(pids))"
    )
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)


async def test_many_sigchld_at_once_print_no_warning(reaper: Reaper, capfd: pytest.CaptureFixture[str]) -> None:
    """Each signal that comes while the loop is busy writes a byte to a pipe; when that is full, Python prints a warning for each."""
    for _ in range(5000):
        os.kill(os.getpid(), signal.SIGCHLD)
    await asyncio.sleep(0)
    assert capfd.readouterr().err == ""


def test_signal_names() -> None:
    assert [signal_number(name) for name in ("INT", "sigterm", "KILL")] == [2, 15, 9]
    with pytest.raises(HoldfastError):
        signal_number("IGN")


def test_output_of_delivered_commands_is_kept_within_bounds() -> None:
    budget = Budget()
    records = Records()
    size = KEPT_COMMAND_BYTES // 4
    for i in range(200):
        record = records.create(f"c{i}", b"", Spool(budget))
        record.spool.append(1, b"x" * size)
        records.finish(record, ExitStatus(0, 0.1), float(i))
        records.delivered(f"c{i}", float(i))
        assert records.get(f"c{i}").spool.held(1) == b"x" * size
        assert budget.held_bytes <= KEPT_SANDBOX_BYTES
    kept = [i for i in range(200) if records.get(f"c{i}").spool.held_bytes]
    assert kept == list(range(200 - len(kept), 200)), "the oldest were dropped first"
    assert budget.held_bytes > KEPT_SANDBOX_BYTES // 2
    records.prune(10**6)
    assert budget.held_bytes == 0


def test_records_keep_their_bounds() -> None:
    budget = Budget()
    records = Records(most=10)
    for i in range(50):
        record = records.create(f"c{i}", b"", Spool(budget))
        record.spool.append(1, b"x" * 100)
        records.finish(record, ExitStatus(0, 0.1), float(i))
        if i % 2:
            records.delivered(f"c{i}", float(i))
    assert len(records) == 10
    assert budget.held_bytes <= 10 * (100 + 128), "including the overhead"
    with pytest.raises(HoldfastError) as pruned:
        records.find("c1", b"")
    assert pruned.value.code == "pruned"
    records.prune(10**6)
    assert len(records) == 0
    assert budget.held_bytes == 0


def test_no_command_inherits_a_signal_that_the_agents_parent_ignored() -> None:
    """Also where posix_spawn(3) left glibc's two internal signals ignored, for which no handler can be set."""
    script = (
        "import signal; from session_agent.agent.process import processes;"
        "before = processes._ignored(); processes._replace_inherited_ignores(); print(sorted(before)); print(sorted(processes._ignored()))"
    )
    shell = f"trap '' INT TERM; exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    reader, writer = os.pipe()
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", shell], environment, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
    os.close(writer)
    with open(reader) as file:
        before, after = (set(json.loads(line)) for line in file)
    assert os.waitpid(pid, 0)[1] == 0
    assert before >= {signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ}
    assert after == before - {signal.SIGINT, signal.SIGTERM}
