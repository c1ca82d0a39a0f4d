"""The session core under seeded faults, and a check that this suite detects faults in it (PROTOCOL §4–§6)."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import AnyItem, Hello
from holdfast_wire.limits import FIRST_ACCEPTED, WINDOW_BYTES
from holdfast_wire.session import agent_session, client_session
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.base import Session
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.halves import ReceiveHalf, SendHalf

from tests.support.planted import Plant, expect_caught

from .plans import ViolationError
from .simulation import World

WORLDS = 2000
BATCH = 250


@pytest.fixture(autouse=True)
def _few_untaken_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world is too short for the limits there are."""
    for end in (agent_session, client_session):
        monkeypatch.setattr(end, "UNTAKEN", 2)
        monkeypatch.setattr(end, "ACCEPTED_CHANNELS", 5)


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_resume_is_lossless_and_ordered(first: int) -> None:
    faults = commands = links = 0
    for seed in range(first, first + BATCH):
        world = World(seed)
        try:
            world.run()
        except (ViolationError, HoldfastError) as error:
            pytest.fail(f"seed {seed}: {error}")
        faults += world.faults
        commands += len(world.plans)
        links += len(world.listening.links)
    assert faults > 2 * BATCH, "too few faults to prove anything"
    assert commands > 8 * BATCH
    assert links > 8 * BATCH


# Bugs that a session protocol can have. Each must be caught within the seeds of one batch. ------------------------


def _duplicates_accepted(patch: pytest.MonkeyPatch) -> None:
    def accept(self: ReceiveHalf, item: AnyItem, offset: int) -> bool:
        self.received = max(self.received, offset + item.length)
        self.consumed = self.received
        return True

    patch.setattr(ReceiveHalf, "accept", accept)


def _nothing_sent_again(patch: pytest.MonkeyPatch) -> None:
    def rewind(self: SendHalf, received: int) -> list[str]:
        return self.ack(received)

    patch.setattr(SendHalf, "rewind", rewind)


def _everything_sent_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = SendHalf.pop

    def pop(self: SendHalf) -> bytes:
        message = original(self)
        if self._stored:
            self._stored.popleft()
        return message

    patch.setattr(SendHalf, "pop", pop)


def _ack_trims_one_too_many(patch: pytest.MonkeyPatch) -> None:
    original = SendHalf.ack

    def ack(self: SendHalf, offset: int) -> list[str]:
        delivered = original(self, offset)
        if self._stored and offset > self.acked - 1 and self.acked:
            self._stored.popleft()
        return delivered

    patch.setattr(SendHalf, "ack", ack)


def _resume_starts_at_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    def rewind(self: SendHalf, received: int) -> list[str]:
        delivered = self.ack(received)
        pending = {id(stored) for stored in self.unsent}
        self.unsent = deque(stored for stored in self._stored if id(stored) in pending)
        return delivered

    patch.setattr(SendHalf, "rewind", rewind)


def _credit_not_repeated(patch: pytest.MonkeyPatch) -> None:
    original = Session._resume

    def resume(self: Session, received: dict[int, int]) -> None:
        original(self, received)
        self._owed._credits.clear()

    patch.setattr(Session, "_resume", resume)


def _stale_greeting_accepted(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession.attach

    def attach(self: AgentSession, hello: Hello, now: float) -> None:
        self._attempt = 0
        original(self, hello, now)

    patch.setattr(AgentSession, "attach", attach)


def _attach_starts_afresh(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession.attach

    def attach(self: AgentSession, hello: Hello, now: float) -> None:
        if self.generation:
            self._channels.clear()
        original(self, hello, now)

    patch.setattr(AgentSession, "attach", attach)


def _ended_channels_never_retired(patch: pytest.MonkeyPatch) -> None:
    def keep(self: AgentSession, number: int, offset: int) -> None:
        return None

    patch.setattr(AgentSession, "_retire", keep)


def _silence_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Session.tick

    def tick(self: Session, now: float) -> None:
        self._heard = now
        original(self, now)

    patch.setattr(Session, "tick", tick)


def _credit_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendHalf, "limit", property(lambda self: 1 << 40, lambda self, value: None), raising=False)


def _received_offset_is_one_too_high(patch: pytest.MonkeyPatch) -> None:
    def offsets(self: Session) -> dict[int, int]:
        return {number: channel.inbound.received + (channel.inbound.received > 0) for number, channel in self._channels.items()}

    patch.setattr(ClientSession, "_offsets", offsets)


def _waiting_connections_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSession, "may_accept", lambda self, listener: listener in self._channels)


def _taken_connections_stay_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSession, "_credited", lambda self, channel: None)


def _an_end_is_acknowledged_before_its_connection_is_taken(patch: pytest.MonkeyPatch) -> None:
    original = ClientSession._receive_item

    def receive(self: ClientSession, item: AnyItem, offset: int, now: float) -> None:
        original(self, item, offset, now)
        channel = self._channels.get(item.channel)
        if channel is not None and channel.untaken:
            self._owed.received(item.channel, channel.inbound.received, 1, now)

    patch.setattr(ClientSession, "_receive_item", receive)


def _a_resume_sends_the_end_of_a_listener_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSession, "_resume", Session._resume)


def _connections_are_forgotten_by_a_resume(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession.attach

    def attach(self: AgentSession, hello: Hello, now: float) -> None:
        for number in [n for n, channel in self._channels.items() if channel.listener and n not in hello.received]:
            self._remove(number)
        original(self, hello, now)

    patch.setattr(AgentSession, "attach", attach)


def _ended_connections_are_reported_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agent_session, "_next_number", lambda hello, number: hello.next_channel if number < FIRST_ACCEPTED else FIRST_ACCEPTED)


def _numbers_of_connections_are_used_twice(patch: pytest.MonkeyPatch) -> None:
    original = AgentSession.accept

    def accept(self: AgentSession, listener: int, info: dict[str, Any]) -> int:
        while self._next_accepted > FIRST_ACCEPTED and self._next_accepted - 1 not in self._channels:
            self._next_accepted -= 1
        return original(self, listener, info)

    patch.setattr(AgentSession, "accept", accept)


def _connections_have_the_whole_window_at_once(patch: pytest.MonkeyPatch) -> None:
    for end in (agent_session, client_session):
        patch.setattr(end, "ACCEPTED_WINDOW_BYTES", WINDOW_BYTES)


PLANTED = [
    _duplicates_accepted,
    _nothing_sent_again,
    _everything_sent_is_forgotten,
    _ack_trims_one_too_many,
    _resume_starts_at_what_was_sent,
    _credit_not_repeated,
    _stale_greeting_accepted,
    _attach_starts_afresh,
    _ended_channels_never_retired,
    _silence_ignored,
    _credit_ignored,
    _received_offset_is_one_too_high,
    _waiting_connections_are_not_counted,
    _taken_connections_stay_counted,
    _an_end_is_acknowledged_before_its_connection_is_taken,
    _a_resume_sends_the_end_of_a_listener_first,
    _connections_are_forgotten_by_a_resume,
    _ended_connections_are_reported_again,
    _numbers_of_connections_are_used_twice,
    _connections_have_the_whole_window_at_once,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_caught(plant, monkeypatch, lambda seed: World(seed).run(), BATCH, (ViolationError, HoldfastError, ValueError))
