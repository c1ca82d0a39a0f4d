"""Several clients of one command, shell or terminal: what one sends, reads, acknowledges or is refused does not affect the others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.frames import Ack, Closed, Credit, Exited, Failed, Hello, Open, Opened, Run
from holdfast_wire.limits import WINDOW_BYTES
from holdfast_wire.session import halves
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.events import Delivered

from session_agent.agent.context import SandboxLimits
from session_agent.agent.session.sessions import Sessions
from session_agent.agent.startup.handlers import LazyHandlers
from tests.support.channel import SilentConnection
from tests.support.process_channel import Client, ProcessChannel, client
from tests.support.running import only_shell, only_terminal
from tests.support.until import until_async

PATH = os.environ["PATH"]


async def test_a_slow_reader_gets_what_a_faster_one_has_acknowledged() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        params: dict[str, Any] = {"id": "a", "script": "head -c 1000000 /dev/zero"}
        slow = sandbox.command(**params, window=65536, reading=False)
        fast = sandbox.command(**params)
        await fast.outcome()
        fast.handler.delivered("a")
        while not slow.ended.is_set():
            slow.read()
            await asyncio.sleep(0)
        outcome = await slow.outcome()
        assert (len(outcome.stdout), outcome.gaps) == (1_000_000, [])
        assert sandbox.context.budget.held_bytes == 0


async def test_an_unread_command_continues_when_another_frees_budget() -> None:
    async with client(SandboxLimits(spool_sandbox_bytes=200_000), env={"PATH": PATH}) as sandbox:
        much, budget = "head -c 1000000 /dev/zero", sandbox.context.budget
        first = sandbox.command(id="a", script=f"{much}; {much}")
        first.handler.close(True)
        await until_async(lambda: len(budget.waiting) == 1, deadline_s=60, what="the first to fill the budget")
        second = sandbox.command(id="b", script=f"echo begun; {much}; {much}", window=6, reading=False)
        await second.until(lambda: second.output == b"begun\n")
        second.handler.close(True)
        await until_async(lambda: len(budget.waiting) == 2, deadline_s=60, what="the second to wait")
        outcome = await sandbox.open("follow", {"id": "a"}).outcome()
        assert (len(outcome.stdout), outcome.gaps) == (2_000_000, [])
        sandbox.context.records.delivered("a", 0.0)
        await until_async(lambda: budget.held_bytes >= 200_000, deadline_s=60, what="the second to continue")
        outcome = await sandbox.open("follow", {"id": "b"}).outcome()
        assert len(outcome.stdout) + sum(gap.dropped for gap in outcome.gaps) == 2_000_006


@pytest.mark.parametrize("given", [7, "", [], {1: "x"}, {1: -1}, {1: True}, {2: None}, {1: 1.0}])
async def test_an_invalid_start_offset_is_refused(given: Any) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        await sandbox.execute("true", id="a")
        last = await sandbox.open("follow", {"id": "a", "from": given}).end()
        assert isinstance(last, Failed)
        assert last.error["code"] == "invalid_argument"


async def test_an_offset_beyond_the_end_is_the_end_and_unknown_streams_are_ignored() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        await sandbox.execute("echo", "abc", id="a")
        for given, expected in (({1: 2**63, 9: 1}, b""), ({"1": 1}, b"bc\n"), ({}, b"abc\n"), (None, b"abc\n")):
            outcome = await sandbox.open("follow", {"id": "a", "from": given}).outcome()
            assert (outcome.stdout, outcome.result["streams"][1][:2]) == (expected, [4, 0])


async def test_terminals_that_end_without_a_reader_leave_nothing_in_the_budget() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"name": "t", "argv": ["sh", "-c", "seq 1 1000; read x"]})
        await channel.until(lambda: b"\n1000\r" in channel.output)
        terminal = only_terminal(sandbox.context)
        channel.handler.close(True)
        terminal.end("cancelled")
        await until_async(lambda: not sandbox.context.terminals, deadline_s=60, what="the end of the terminal")
        assert sandbox.context.budget.held_bytes == 0
        channel = sandbox.open("terminal", {"name": "t", "argv": ["seq", "1", "1000"]}, window=100, reading=False)
        await until_async(lambda: not sandbox.context.terminals, deadline_s=60, what="the end of the terminal")
        channel.handler.drop()
        assert sandbox.context.budget.held_bytes == 0
        missing = sandbox.open("terminal", {"argv": ["no-such-program"]})
        assert (await missing.outcome()).stdout == b"no-such-program: command not found\r\n"
        assert sandbox.context.budget.held_bytes == 0


async def test_a_queued_run_can_be_killed_by_its_follower() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        first = shell.begin("read x; echo $x", stdin="pipe")
        shell.begin("echo never", command_id="second")
        follower = sandbox.open("follow", {"id": "second"})
        follower.handler.signal("KILL")
        assert isinstance(await follower.end(), Failed)
        last = shell.begin("echo never")
        sandbox.open("follow", {"id": last}).handler.signal("INT")
        shell.handler.signal("KILL")
        assert (await shell.wait(first)).exit_code == 137
        outcome = await shell.wait(last)
        assert (outcome.exit_code, outcome.result["cause"]["reason"]) == (None, "cancelled")


class StrictChannel(ProcessChannel):
    """A channel that, like the real one, refuses to consume more than arrived."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.arrived = 0

    def consume(self, size_bytes: int) -> None:
        super().consume(size_bytes)
        if self.consumed > self.arrived:
            raise ValueError(f"{self.consumed} bytes consumed, {self.arrived} arrived")

    def feed(self, data: bytes, eof: bool = False) -> None:
        self.arrived += len(data)
        self.handler.write(data, eof)


def open_strict(sandbox: Client, kind: str, params: dict[str, Any]) -> StrictChannel:
    channel = StrictChannel(kind, params)
    channel.handler = LazyHandlers()[kind](sandbox.context, channel)
    return channel


async def test_input_of_two_clients_arrives_once_and_each_gets_its_own_credit(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    async with client(env={"PATH": PATH}) as sandbox:
        first = open_strict(sandbox, "command", {"id": "a", "script": f"read x <{go}; cat", "stdin": "pipe"})
        first.feed(b"1" * 300_000)
        first.handler.close(True)
        second = open_strict(sandbox, "follow", {"id": "a"})
        second.feed(b"2" * 10, True)
        go.write_text("on\n")
        assert (await second.outcome()).stdout == b"1" * 300_000 + b"2" * 10
        assert second.consumed == 10


async def test_terminal_input_of_two_clients_arrives_once() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        params = {"name": "t", "argv": ["sh", "-c", "stty raw -echo; echo ready; read x; head -c 300003 | tr -d '\\n' | wc -c; read x"]}
        first = open_strict(sandbox, "terminal", params)
        await first.until(lambda: b"ready" in first.output)
        first.feed(b"\n" + b"1" * 300_000)
        second = open_strict(sandbox, "terminal", params)
        second.feed(b"222\n")
        await second.until(lambda: b"300003" in second.output)
        assert (first.consumed, second.consumed) == (300_001, 4)


async def test_a_queued_run_gets_the_input_of_two_clients_once() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        shell.begin("read x", command_id="first", stdin="pipe")
        shell.begin("cat", command_id="second", stdin="pipe")
        one, two = (open_strict(sandbox, "follow", {"id": "second"}) for _ in range(2))
        one.feed(b"1" * 300_000)
        two.feed(b"2" * 10, True)
        feeder = open_strict(sandbox, "follow", {"id": "first"})
        feeder.feed(b"on\n")
        assert (await two.outcome()).stdout == b"1" * 300_000 + b"2" * 10


async def test_a_refused_run_takes_no_input_of_another() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        first = shell.begin("read x; echo $x", stdin="pipe")
        shell.begin("cat", command_id="refused", stdin="nonsense")
        shell.handler.write(b"for the second\n", False)
        sandbox.open("follow", {"id": first}).handler.write(b"for the first\n", False)
        assert (await shell.wait(first)).stdout == b"for the first\n"


async def test_every_follower_of_a_run_that_never_starts_gets_an_error() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        shell.begin("sleep 60")
        for command_id in ("second", "third"):
            shell.begin("echo never", command_id=command_id)
        followers = [sandbox.open("follow", {"id": command_id}) for command_id in ("second", "third")]
        shell.handler.close(False)
        for follower in followers:
            last = await follower.end()
            assert isinstance(last, Failed)
            assert last.error["code"] == "cancelled"
        assert isinstance(await shell.channel.end(), Closed)


async def test_an_acknowledged_refusal_does_not_mark_the_command_of_that_id_as_delivered() -> None:
    agent = AgentSession("s" * 16, b"k" * 16, "epoch")
    agent.attach(Hello(1, "s" * 16, b"k" * 16, "", 0, 1, {}, 1), 0.0)
    agent.receive(encode_item(Open(1, "shell", {}), 0), 0.0)
    for fact in (Opened(1, {}), Exited(1, "refused", {"error": {"code": "command_conflict"}}), Exited(1, "ran", {"exit_code": 0})):
        agent.send(fact)
    agent.events()
    agent.receive(encode(Ack(1, 3)), 0.0)
    assert [event.command_id for event in agent.events() if isinstance(event, Delivered)] == ["ran"]


@pytest.mark.parametrize("ends", [False, True])
async def test_results_wait_for_a_client_that_gives_no_credit(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "CONTROL_SLACK", 4)
    async with client(env={"PATH": PATH}) as sandbox:
        records = sandbox.context.records
        hello = Hello(1, "s" * 16, b"k" * 16, "", 0, 1, {}, 1)
        held = Sessions(sandbox.context, LazyHandlers(), "epoch", {}).attach(hello, SilentConnection(), 0.0)
        ids = [f"run-{number}" for number in range(20)]
        received: list[str] = []

        def send(*messages: bytes) -> None:
            for message in messages:
                held.session.receive(message, 0.0)
                held.dispatch(0.0)

        def collect() -> None:
            received.extend(type(frame).__name__ for frame, _ in map(decode, held.session.outgoing()))

        send(encode_item(Open(1, "shell", {"name": "main"}), 0))
        send(encode_item(Run(1, "much", {"script": f"head -c {WINDOW_BYTES - 2} /dev/zero"}), 1))
        send(*(encode_item(Run(1, command_id, {"script": ":"}), 2 + at) for at, command_id in enumerate(ids)))
        await until_async(lambda: all(records.get(command_id).exit_status for command_id in ids), deadline_s=60, what="the end of all runs")
        collect()
        assert received.count("Exited") < len(ids)
        if ends:
            only_shell(sandbox.context).end()
        send(encode(Credit(1, 2 * WINDOW_BYTES)))
        collect()
        assert received[-1] == "Closed" if ends else received.count("Exited") == 1 + len(ids)
