"""The channel ``activity`` of the agent: what comes, in which order, from which position, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import msgpack
from holdfast_wire.frames import Closed, Opened, Output
from holdfast_wire.limits import JOURNAL_COMMAND_BYTES

from session_agent.agent.commands import activity
from tests.support.process_channel import Client, ProcessChannel, client


def entries(channel: ProcessChannel) -> list[dict[str, Any]]:
    """What has arrived, without samples."""
    found: list[dict[str, Any]] = []
    for one in msgpack.Unpacker(io.BytesIO(bytes(channel.output))):
        ended, pieces = one.pop("ended", None), one.pop("output", [])
        found.append(one)
        found += [{"type": "output", "id": one["id"], "stream": stream, "data": data, "n": one["n"]} for _, stream, data in pieces]
        if ended is not None:
            found.append({"type": "command_ended", "id": one["id"], "n": one["n"], **ended})
    return found


def of(channel: ProcessChannel, kind: str) -> list[dict[str, Any]]:
    return [one for one in entries(channel) if one["type"] == kind]


async def until_ended(channel: ProcessChannel, command_id: str) -> dict[str, Any]:
    def ended() -> list[dict[str, Any]]:
        return [one for one in of(channel, "command_ended") if one["id"] == command_id]

    await channel.until(ended)
    return ended()[0]


def opened(channel: ProcessChannel) -> dict[str, Any]:
    assert isinstance(channel.facts[0], Opened), channel.facts
    return channel.facts[0].info


async def test_commands_runs_and_terminals_with_their_content() -> None:
    async with client() as made:
        early = made.command("sleep", "60", id="early")
        channel = made.open("activity", {"content": True})
        script = "echo one\nsleep 0.2; echo two >&2; exit 3"
        await made.open("command", {"id": "c1", "script": script}).outcome()
        shell = made.shell(name="main")
        await shell.run("echo three", command_id="r1")
        terminal = made.open("terminal", {"name": "t1", "argv": ["cat"], "rows": 10, "cols": 20})
        terminal.handler.write(b"typed\r", False)
        terminal.handler.resize(30, 40)
        terminal.handler.write(b"\x04", False)
        await terminal.end()
        assert (await until_ended(channel, "c1")).items() >= {"exit_code": 3, "stdout_bytes": 4, "stderr_bytes": 4}.items()
        await until_ended(channel, "r1")
        await until_ended(channel, "t1")
        found = entries(channel)
        assert [one["id"] for one in found if one["type"] == "command_started"] == ["early", "c1", "r1", "t1"]
        assert found[0]["late"] is True
        started = {one["id"]: one for one in found if one["type"] == "command_started"}
        assert (started["c1"]["command"], started["r1"]["shell"]) == (script.encode(), "main")
        assert (started["t1"]["rows"], started["t1"]["cols"]) == (10, 20)
        output = {id_: b"".join(one["data"] for one in found if one["type"] == "output" and one["id"] == id_) for id_ in started}
        assert (output["c1"], output["r1"]) == (b"one\ntwo\n", b"three\n")
        assert b"typed" in output["t1"]
        assert [one["data"] for one in found if one["type"] == "input"] == [b"typed\r", b"\x04"]
        assert [(one["rows"], one["cols"]) for one in found if one["type"] == "resized"] == [(30, 40)]
        early.handler.close(False)
        channel.handler.close(False)
        assert isinstance(await channel.end(), Closed)


async def test_without_content_there_is_none() -> None:
    async with client() as made:
        recorded = made.open("activity", {"content": True})
        channel = made.open("activity", {})
        await made.open("command", {"id": "c1", "script": "echo secret"}).outcome()
        await until_ended(recorded, "c1")
        await until_ended(channel, "c1")
        assert of(channel, "command_started")[0]["line"] == "echo secret"
        assert b"output" not in bytes(channel.output)
        assert b"command\xc4" not in bytes(channel.output)


async def test_a_reader_continues_from_its_position() -> None:
    async with client() as made:
        first = made.open("activity", {"content": True})
        await made.execute("true", id="c1")
        position = (await until_ended(first, "c1"))["n"]
        first.handler.drop()
        await made.execute("true", id="c2")
        epoch = opened(first)["epoch"]
        second = made.open("activity", {"content": True, "after": position, "epoch": epoch})
        await until_ended(second, "c2")
        assert opened(second)["missing"] is False
        assert [one["id"] for one in of(second, "command_started")] == ["c2"]
        by_age = made.open("activity", {"age_s": 60.0})
        assert opened(by_age)["missing"] is True, "the journal began since"
        other = made.open("activity", {"after": 7, "epoch": "another"})
        assert opened(other)["missing"] is True
        await until_ended(other, "c1")


async def test_what_is_dropped_is_a_gap_and_no_command_waits(monkeypatch: Any) -> None:
    monkeypatch.setattr(activity, "JOURNAL_BYTES", 64 * 1024)
    async with client() as made:
        channel = made.open("activity", {"content": True}, window=1000, reading=False)
        for number in range(10):
            outcome = await made.execute("head", "-c", "30000", "/dev/zero", id=f"c{number}")
            assert (outcome.exit_code, len(outcome.stdout)) == (0, 30000)
        journal = made.context.records.journal
        assert journal is not None
        assert sum(size for size, _ in journal.entries) <= 64 * 1024 + 31_000
        channel._reading = True
        channel.read()
        await until_ended(channel, "c9")
        assert of(channel, "gap")[0]["lost"] > 0


async def test_a_flood_is_recorded_up_to_the_limit_of_one_command() -> None:
    async with client() as made:
        channel = made.open("activity", {"content": True})
        await made.execute("head", "-c", str(3 * JOURNAL_COMMAND_BYTES), "/dev/zero", id="c1")
        ended = await until_ended(channel, "c1")
        assert ended["stdout_bytes"] == 3 * JOURNAL_COMMAND_BYTES
        assert sum(len(one["data"]) for one in of(channel, "output")) == JOURNAL_COMMAND_BYTES


async def test_usage_ports_and_progress() -> None:
    async with client() as made:
        channel = made.open("activity", {"usage_s": 0.2})
        made.command("sh", "-c", "echo some; sleep 60", id="c1", live=True)
        await channel.until(lambda: of(channel, "progress") and of(channel, "usage"))
        assert of(channel, "progress")[0].items() >= {"id": "c1", "stdout_bytes": 5, "stderr_bytes": 0}.items()
        assert of(channel, "usage")[0].keys() & {"memory_bytes", "cpu_s"}


async def test_sync_ends_after_everything_was_sent() -> None:
    async with client() as made:
        channel = made.open("activity", {"content": True})
        await made.execute("echo", "x", id="c1")
        assert isinstance(await made.open("activity", {"sync": True}).end(), Closed)
        assert of(channel, "command_ended")


async def test_nothing_is_collected_without_a_reader(monkeypatch: Any) -> None:
    monkeypatch.setattr(activity, "JOURNAL_LINGER_S", 0.01)
    async with client() as made:
        await made.execute("true")
        assert made.context.records.journal is None
        channel = made.open("activity", {"content": True})
        await _ended_journal(made, channel)
        await made.execute("true")
        assert made.context.records.journal is None


async def _ended_journal(made: Client, channel: ProcessChannel) -> None:
    from tests.support.until import until_async

    channel.handler.close(False)
    await until_async(lambda: made.context.records.journal is None, deadline_s=60.0, what="the end of the journal")


def reports(channel: ProcessChannel) -> int:
    """How many messages have come."""
    return sum(isinstance(fact, Output) for fact in channel.facts)


async def test_commands_without_a_pause_share_messages(monkeypatch: Any) -> None:
    monkeypatch.setattr(activity, "_PAUSE_CONTENT_S", 60.0)
    async with client() as made:
        channel = made.open("activity", {"content": True})
        await made.execute("true", id="first")
        await until_ended(channel, "first")
        before = reports(channel)
        for number in range(20):
            await made.execute("true", id=f"c{number}")
        await asyncio.sleep(3 * activity._FLUSH_S)
        assert reports(channel) == before, "the first message was less than a minute ago"
        await made.execute("head", "-c", str(activity._EARLY_BYTES + 1000), "/dev/zero", id="large")
        await made.execute("true", id="after")
        await channel.until(lambda: of(channel, "output"))
        assert [one["id"] for one in of(channel, "command_ended")][:21] == ["first", *[f"c{number}" for number in range(20)]]
