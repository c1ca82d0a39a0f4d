"""One-off commands on real processes: input, output, signals, users, and exactly-once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.frames import Exited, Failed, Gap, Output, Started
from holdfast_wire.limits import KEPT_COMMAND_BYTES

from session_agent.agent.context import SandboxLimits
from tests.session_agent.processes import nap, sleepers
from tests.support.process_channel import Outcome, client
from tests.support.until import until_async

PATH = os.environ["PATH"]


async def test_a_command_has_its_own_directory_environment_and_output(tmp_path: Path) -> None:
    async with client(env={"PATH": PATH, "GIVEN": "by the sandbox"}) as sandbox:
        outcome = await sandbox.execute(
            "sh", "-c", 'pwd; echo "$GIVEN $OWN $HOLDFAST_LEAK"; echo e >&2; exit 3', cwd=str(tmp_path), env={"OWN": "x"}
        )
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, f"{tmp_path}\nby the sandbox x \n".encode(), b"e\n")
        assert outcome.started
        assert outcome.result["cause"] is None
        assert outcome.result["duration_s"] > 0


async def test_a_command_inherits_nothing_from_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_AGENT_TOKEN", "secret")
    async with client(env={"PATH": PATH}) as sandbox:
        names = {line.split(b"=")[0] for line in (await sandbox.execute("env")).stdout.splitlines()}
        assert b"HOLDFAST_AGENT_TOKEN" not in names
        assert names <= {b"PATH", b"HOME", b"USER", b"LOGNAME", b"LANG", b"TERM", b"SHELL", b"PWD"}
        assert (await sandbox.execute("ls", "/proc/self/fd")).stdout.split() == [b"0", b"1", b"2", b"3"]
        session = await sandbox.execute("sh", "-c", "echo $$; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat")
        pid, sid = session.stdout.split()
        assert pid == sid


async def test_string_is_run_by_the_shell() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        outcome = await sandbox.execute(script="echo $((40 + 2)) | cat; no-such-program")
        assert (outcome.exit_code, outcome.stdout) == (127, b"42\n")
        assert b"not found" in outcome.stderr


async def test_not_found_and_not_executable(tmp_path: Path) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        missing = await sandbox.execute("no-such-program")
        assert (missing.exit_code, missing.started) == (127, True)
        assert missing.stderr == b"no-such-program: command not found\n"
        plain = tmp_path / "plain"
        plain.write_text("x")
        assert (await sandbox.execute(str(plain))).exit_code == 126
        bad = tmp_path / "bad"
        bad.write_text("#!/no/such/interpreter\n")
        bad.chmod(bad.stat().st_mode | stat.S_IXUSR)
        outcome = await sandbox.execute(str(bad))
        assert (outcome.exit_code, outcome.stderr.endswith(b"the interpreter it names is missing\n")) == (126, True)
        assert not sandbox.context.commands


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "invalid_argument"),
        ({"argv": []}, "invalid_argument"),
        ({"argv": "ls"}, "invalid_argument"),
        ({"argv": ["a\0b"]}, "invalid_argument"),
        ({"argv": ["ls"], "script": "ls"}, "invalid_argument"),
        ({"script": 7}, "invalid_argument"),
        ({"argv": ["ls"], "env": {"A=B": "x"}}, "invalid_argument"),
        ({"argv": ["ls"], "env": {"A": 1}}, "invalid_argument"),
        ({"argv": ["ls"], "timeout_s": "soon"}, "invalid_argument"),
        ({"argv": ["ls"], "timeout_s": float("nan")}, "invalid_argument"),
        ({"argv": ["ls"], "cwd": "/no/such/place"}, "cwd_not_found"),
        ({"argv": ["ls"], "user": "nobody-of-that-name"}, "user_not_found"),
        ({"argv": ["ls"], "user": True}, "invalid_argument"),
        ({"argv": ["ls"], "outlive": "maybe"}, "invalid_argument"),
        ({"argv": ["ls"], "spool_bytes": -1}, "invalid_argument"),
        ({"argv": ["ls"], "id": ""}, "invalid_argument"),
        ({"argv": ["ls"], "id": 5}, "invalid_argument"),
        ({"argv": ["ls"], "id": "x" * 129}, "invalid_argument"),
    ],
)
async def test_refused_with_a_typed_error(params: dict[str, object], code: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(**params)  # type: ignore[arg-type]
        last = await channel.end()
        assert isinstance(last, Failed)
        assert last.error["code"] == code
        assert not sandbox.context.commands
        assert len(sandbox.context.records) == 0


async def test_input_ends_with_end_of_file() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sha256sum", stdin="pipe")
        data = os.urandom(3_000_000)
        await channel.write(data, eof=True)
        outcome = await channel.outcome()
        assert outcome.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
        assert channel.consumed == len(data)


async def test_credit_for_input_that_is_not_read_is_returned() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "exec 0<&-; sleep 0.05", stdin="pipe")
        await channel.write(b"x" * 500_000)
        await channel.outcome()
        await channel.used(500_000)


async def test_input_is_empty_by_default() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "cat; echo end")
        channel.handler.write(b"ignored", False)
        assert (await channel.outcome()).stdout == b"end\n"
        assert channel.consumed == 7


async def test_signal_goes_to_the_group() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.01; done")
        await channel.fact(Output)
        channel.handler.signal("NO-SUCH-SIGNAL")
        channel.handler.signal("TERM")
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.stdout) == (9, b"ready\ncaught\n")
        channel = sandbox.command("sleep", "60")
        channel.handler.signal("INT")
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["signal"]) == (130, "INT")


async def test_the_same_id_attaches_and_never_runs_twice(tmp_path: Path) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        script = f"echo once >>{tmp_path}/log; echo out"
        first = sandbox.command(id="a", script=script)
        second = sandbox.command(id="a", script=script)
        for channel in (first, second, sandbox.command(id="a", script=script)):
            outcome = await channel.outcome()
            assert (outcome.exit_code, outcome.stdout) == (0, b"out\n")
        assert (tmp_path / "log").read_text() == "once\n"
        other = await sandbox.command(id="a", script="echo other").end()
        assert isinstance(other, Failed)
        assert other.error["code"] == "command_conflict"


async def test_a_record_is_kept_until_some_time_after_delivery() -> None:
    now = 0.0
    async with client(env={"PATH": PATH}) as sandbox:
        records = sandbox.context.records
        channel = sandbox.command(id="a", script="echo out")
        await channel.outcome()
        now = sandbox.context.now()
        records.prune(now + 23 * 3600)
        again = await sandbox.command(id="a", script="echo out").outcome()
        assert again.stdout == b"out\n"
        channel.handler.delivered("a")
        late = await sandbox.command(id="a", script="echo out").outcome()
        assert (late.exit_code, late.stdout, late.gaps) == (0, b"out\n", []), "the result may have been lost after its delivery"
        records.prune(sandbox.context.now() + 301)
        for kind, params in (("command", {"id": "a", "script": "echo out"}), ("follow", {"id": "a"})):
            last = await sandbox.open(kind, params).end()
            assert isinstance(last, Failed)
            assert last.error["code"] == "pruned"


async def test_large_output_is_dropped_after_delivery() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        params: dict[str, Any] = {"id": "a", "script": f"head -c {KEPT_COMMAND_BYTES + 1} /dev/zero"}
        channel = sandbox.command(**params)
        assert len((await channel.outcome()).stdout) == KEPT_COMMAND_BYTES + 1
        channel.handler.delivered("a")
        late = await sandbox.command(**params).outcome()
        assert (late.exit_code, late.stdout, [gap.dropped for gap in late.gaps]) == (0, b"", [KEPT_COMMAND_BYTES + 1])
        assert sandbox.context.budget.held_bytes == 0


async def test_follow_from_offsets() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        last = await sandbox.open("follow", {"id": "nothing"}).end()
        assert isinstance(last, Failed)
        assert last.error["code"] == "command_not_found"
        await sandbox.command(id="a", script="echo abcdef; echo ghijkl >&2").outcome()
        follower = await sandbox.open("follow", {"id": "a", "from": {1: 3, 2: 7}}).outcome()
        assert (follower.stdout, follower.stderr, follower.gaps) == (b"def\n", b"", [])
        far = await sandbox.open("follow", {"id": "a", "from": {1: 10**12}}).outcome()
        assert far.stdout == b""


async def test_detached_command_runs_on() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(id="a", script="echo one; read x; echo got $x", stdin="pipe")
        await channel.fact(Output)
        channel.handler.close(True)
        assert isinstance(await channel.end(), Failed)
        again = sandbox.open("follow", {"id": "a", "from": {1: 4}})
        again.handler.write(b"it\n", True)
        assert (await again.outcome()).stdout == b"got it\n"


async def test_a_slow_reader_blocks_the_process() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "head -c 20000000 /dev/zero; echo done >&2", window=65536, reading=False)
        await until_async(lambda: sandbox.context.budget.held_bytes >= 2_000_000, deadline_s=60, what="a full spool")
        for _ in range(5):
            await asyncio.sleep(0.01)  # nothing should arrive, so there is no event to wait for
        assert sandbox.context.budget.held_bytes < 2_500_000
        assert Outcome.of(channel.facts).result == {}
        while not channel.ended.is_set():
            channel.read()
            await asyncio.sleep(0)
        outcome = await channel.outcome()
        assert (len(outcome.stdout), outcome.stderr, outcome.gaps) == (20_000_000, b"done\n", [])
        assert outcome.result["truncated"] is False


async def test_output_waits_while_no_client_is_connected() -> None:
    limits = SandboxLimits(spool_command_bytes=1_000_000)
    async with client(limits, env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(id="a", script="head -c 3000000 /dev/zero; echo end >&2", reading=False)
        channel.attached = False
        await until_async(lambda: sandbox.context.budget.held_bytes >= 900_000, deadline_s=60, what="a full spool")
        channel.handler.drop()
        outcome = await sandbox.open("follow", {"id": "a"}).outcome()
        assert (len(outcome.stdout), outcome.gaps) == (3_000_000, [])


async def test_keeping_the_tail_counts_the_bytes_it_drops() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(id="a", script="seq 1 200000", spool="tail", spool_bytes=100_000, reading=False, window=10)
        await until_async(lambda: not sandbox.context.commands, deadline_s=60, what="the end of seq")
        channel.handler.drop()
        outcome = await sandbox.open("follow", {"id": "a"}).outcome()
        expected = b"".join(b"%d\n" % i for i in range(1, 200001))
        seen, dropped, _ = outcome.result["streams"][1]
        assert seen == len(expected)
        assert sum(gap.dropped for gap in outcome.gaps) == dropped > 0
        assert outcome.result["truncated"] is True
        assert expected.endswith(outcome.stdout)
        assert len(outcome.stdout) + dropped == seen


async def test_many_at_once_each_get_their_own_status() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channels = [sandbox.command("sh", "-c", f"exit {code % 200}") for code in range(60)]
        codes = [(await channel.outcome()).exit_code for channel in channels]
        assert codes == [code % 200 for code in range(60)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
async def test_another_user(tmp_path: Path) -> None:
    async with client(env={"PATH": PATH, "HOME": "/root"}, given_home="/root") as sandbox:
        outcome = await sandbox.execute(script="id -u; id -g; echo $HOME $(id -un)", user="nobody", cwd="/")
        uid, gid, home, user = outcome.stdout.split()
        assert (uid, user) == (b"65534", b"nobody")
        assert home != b"/root"
        assert gid == b"65534"
        outcome = await sandbox.execute(script=f"sleep {nap(83)} & sleep {nap(83)}", user=65534, cwd="/", timeout_s=0.1)
        assert outcome.result["timed_out"]
        assert sleepers(nap(83)) == []


async def test_one_exit_fact_per_channel() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("true")
        await channel.outcome()
        channel.handler.writable()
        channel.handler.signal("TERM")
        channel.handler.close(False)
        channel.handler.drop()
        assert [type(fact) for fact in channel.facts] == [Started, Exited]
        assert not any(isinstance(fact, Gap) for fact in channel.facts)


async def test_a_short_command_is_read_once_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("session_agent.agent.process.delayed_watch.DELAY_S", 3600.0)
    async with client(env={"PATH": PATH}) as sandbox:
        outcome = await sandbox.execute("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (outcome.started, outcome.exit_code, outcome.stdout, outcome.stderr) == (True, 3, b"out\n", b"err\n")
        assert (await sandbox.execute("no-such-program")).exit_code == 127
        ended = await sandbox.execute("sh", "-c", "sleep 0.1 & echo early", outlive="wait")
        assert ended.stdout == b"early\n"
        killed = sandbox.command("sleep", "60")
        killed.handler.signal("KILL")
        assert (await killed.outcome()).exit_code == 137


async def test_output_of_a_longer_command_is_sent_as_it_arrives() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "echo early; exec sleep 60")
        await channel.until(lambda: any(isinstance(fact, Output) for fact in channel.facts))
        assert [type(fact) for fact in channel.facts[:2]] == [Started, Output]
        channel.handler.close(False)
        await channel.outcome()
