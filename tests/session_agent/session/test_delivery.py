"""Delivery of a command's output and exit: lost bytes are reported exactly, also when they were lost while the client gave no credit."""

from __future__ import annotations

from holdfast_wire.frames import Exited, Fact, Gap, Output, Started
from holdfast_wire.limits import CONTROL_SLACK, WINDOW_BYTES
from holdfast_wire.session.halves import SendHalf

from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.records import Record
from session_agent.agent.output.spool import Budget, Spool
from session_agent.agent.session.delivery import Presenter

PIECE = 16 * 1024


class ChannelWithoutCredit:
    """A channel whose client gives credit only when the test does; a fact that cannot be queued is an error, as in a session."""

    def __init__(self) -> None:
        self.number = 1
        self.params: dict[str, object] = {}
        self.attached = False
        self.half = SendHalf()
        self.facts: list[Fact] = []

    def send(self, fact: Fact) -> None:
        self.half.push(fact)
        self.facts.append(fact)

    def queue(self, fact: Fact) -> None:
        self.send(fact)

    def wake(self) -> None: ...

    def room(self) -> int:
        return max(0, self.half.limit - self.half.next)

    is_memory_full = False
    settled = True

    def consume(self, size_bytes: int) -> None: ...


def test_a_flood_without_credit_becomes_one_gap() -> None:
    """The client of a command that keeps the tail is detached: the gap grows for hours and stays one item (PROTOCOL §5.3, §7.5)."""
    spool = Spool(Budget(), tail=True, limit_bytes=4 * PIECE)
    record = Record("c", b"", spool)
    record.started = True
    channel = ChannelWithoutCredit()
    presenter = Presenter(channel, record)
    for _ in range(WINDOW_BYTES // PIECE + 2 * CONTROL_SLACK):
        spool.append(1, b"x" * PIECE)
        spool.append(2, b"e" * 10)
        assert not presenter.pump()
    record.exit_status = ExitStatus(0, 1.0)
    while not presenter.pump():
        channel.half.grant(channel.half.limit + WINDOW_BYTES)
    assert isinstance(channel.facts[0], Started)
    assert isinstance(channel.facts[-1], Exited)
    assert sum(isinstance(fact, Gap) for fact in channel.facts) <= 4
    for stream in (1, 2):
        sent = sum(len(fact.data) for fact in channel.facts if isinstance(fact, Output) and fact.stream == stream)
        lost = sum(fact.dropped for fact in channel.facts if isinstance(fact, Gap) and fact.stream == stream)
        assert lost > 0
        assert sent + lost == spool.streams()[stream][0], "every byte was sent or reported as dropped"
