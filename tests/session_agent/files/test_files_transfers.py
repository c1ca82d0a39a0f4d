"""The steps of transfers: steps that fail, threads that cannot be started, and a close or drop at any moment."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.files.read import open_read
from session_agent.agent.files.transfers import Incoming, Outgoing, Sink, Source
from session_agent.agent.files.trees.operations import open_fs
from session_agent.agent.files.write import open_write
from tests.support.channel import DEADLINE_S, Context, FakeChannel, serve
from tests.support.own_process import in_own_process


class Work:
    """A source or a sink that fails, or waits, in a chosen step."""

    def __init__(self, *, fail_in: str = "", wait_in: str = "", error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.go = threading.Event()
        self.waiting = threading.Event()
        self._fail_in = fail_in
        self._wait_in = wait_in
        self._error = error or HoldfastError("no_space", "full")

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name == self._wait_in:
            self.waiting.set()
            assert self.go.wait(DEADLINE_S)
        if name == self._fail_in:
            raise self._error

    def source(self) -> Source:
        try:
            self._do("open")
            yield {}
            yield b"x"
            self._do("read")
            return {}
        finally:
            self._do("close")

    def sink(self) -> Sink:
        try:
            self._do("open")
            while (yield {}) is not None:
                self._do("feed")
            self._do("finish")
            return {}
        finally:
            self._do("close")


def start(kind: str, work: Work) -> FakeChannel:
    channel = FakeChannel(kind, {})
    context = cast("AgentContext", Context("/"))
    channel.handler = Outgoing(channel, work.source(), "/", context) if kind == "read" else Incoming(channel, work.sink(), "/")
    if kind == "write":
        channel.handler.write(b"x", True)
    return channel


STEPS = [("read", "open"), ("read", "read"), ("write", "open"), ("write", "feed"), ("write", "finish")]


@pytest.mark.parametrize(("kind", "step"), STEPS)
async def test_a_failed_transfer_is_closed_before_its_error_is_sent(kind: str, step: str) -> None:
    work = Work(fail_in=step)
    error = await start(kind, work).error()
    assert error["code"] == "no_space"
    assert work.calls[-2:] == [step, "close"]


@pytest.mark.parametrize(("kind", "step"), STEPS)
async def test_an_unexpected_exception_is_reported_and_logged(kind: str, step: str, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(fail_in=step, error=ZeroDivisionError("secret detail"))
    error = await start(kind, work).error()
    assert error["code"] == "internal"
    assert "secret" not in error["message"]
    assert work.calls[-1] == "close"
    assert "a transfer failed" in caplog.text


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize(("kind", "step"), STEPS)
async def test_a_close_or_drop_during_a_step_waits_for_it(kind: str, step: str, how: str) -> None:
    work = Work(wait_in=step)
    channel = start(kind, work)
    async with asyncio.timeout(DEADLINE_S):
        while not work.waiting.is_set():
            await asyncio.sleep(0)
        getattr(channel.handler, how)(*([False] if how == "close" else []))
        assert work.calls[-1] == step, "closed while a step was running"
        work.go.set()
        while work.calls[-1] != "close":
            await asyncio.sleep(0)
    if how == "drop":
        assert not channel.ended.is_set()
    elif step == "finish":
        assert await channel.result() == {}, "the file is complete, so the transfer is not reported as cancelled"
    else:
        assert (await channel.error())["code"] == "cancelled"


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_dropped_channel_receives_nothing_more(kind: str) -> None:
    """Its number may by then belong to another client that took over the session."""
    work = Work(wait_in="close")
    channel = start(kind, work)
    channel.handler.close(False)
    async with asyncio.timeout(DEADLINE_S):
        while not work.waiting.is_set():
            await asyncio.sleep(0)
        channel.handler.drop()
        work.go.set()
    for _ in range(10):
        await asyncio.sleep(0.001)  # nothing should arrive, so there is no event to wait for
    assert not channel.ended.is_set()


async def test_success_closes_once_and_is_reported() -> None:
    for kind in ("read", "write"):
        work = Work()
        await start(kind, work).result()
        assert work.calls.count("close") == 1


async def test_files_are_served_when_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a fork bomb holds every pid, file requests are served on the event loop itself."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        channel = serve(open_write, "write", tmp_path, {"path": "a"})
        await channel.write(b"x" * 1_000_000, eof=True)
        assert (await channel.result())["size"] == 1_000_000
        channel = serve(open_read, "read", tmp_path, {"path": "a"})
        await channel.result()
        assert channel.output == b"x" * 1_000_000
        assert (await serve(open_fs, "fs", tmp_path, {"op": "exists", "path": "a"}).result()) == {"exists": True}


@in_own_process
async def test_many_at_once_share_a_bounded_number_of_threads(tmp_path: Path) -> None:
    before = threading.active_count()
    channels = [serve(open_write, "write", tmp_path, {"path": f"f{i}"}) for i in range(200)]
    for channel in channels:
        channel.handler.write(b"x" * 1000, True)
    for channel in channels:
        await channel.result()
    assert threading.active_count() - before <= 32
    assert len(list(tmp_path.iterdir())) == 200


async def test_requests_that_do_not_apply_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    channel = serve(open_read, "read", tmp_path, {"path": "a"}, window=1, reading=False)
    handler = channel.handler
    handler.run("id", {})
    handler.resize(1, 2)
    handler.signal("INT")
    handler.delivered("id")
    handler.write(b"abc", False)
    assert channel.consumed == 3
    handler.drop()
    handler.writable()
