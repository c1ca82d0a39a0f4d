"""At most once and exactly one outcome, whichever process dies at any step; and planted bugs that the simulation must detect."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.sinks import CommandSink
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Gap, Hello
from holdfast_wire.limits import FIRST_ACCEPTED
from holdfast_wire.session import agent_session, client_session
from holdfast_wire.session.client_session import ClientSession

from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.records import Record, Records
from session_agent.agent.output.spool import Spool, SpoolReader
from session_agent.agent.session.delivery import Presenter
from session_agent.agent.session.sessions import HeldSession
from tests.support.planted import Plant, expect_caught

from .simulated import Sandbox, Wire, World
from .simulated_callers import Callers, ListenerHandler

WORLDS = 500
BATCH = 125


@pytest.fixture(autouse=True)
def _few_untaken_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world is too short for the limit there is."""
    for end in (agent_session, client_session):
        monkeypatch.setattr(end, "UNTAKEN", 2)


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_commands_run_at_most_once_whichever_process_dies(first: int) -> None:
    faults = commands = unknown = served = 0
    for seed in range(first, first + BATCH):
        world = World(seed)
        try:
            world.run()
        except (AssertionError, HoldfastError) as wrong:
            pytest.fail(f"seed {seed}: {wrong}")
        faults += world.faults
        commands += world.commands
        unknown += world.unknown
        served += sum(caller.served for caller in world.callers.all)
    print(f"{BATCH} worlds, {commands} commands, {faults} deaths and cuts, {unknown} without a result")
    assert faults > 10 * BATCH, "too few faults to prove anything"
    assert 0 < unknown < commands / 2
    assert served > 4 * BATCH


# Bugs of one process that only the death of another reveals. Each must be detected within the seeds of one batch. ---------------


def _a_repeated_id_runs_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Records, "find", lambda self, command_id, fingerprint: None)


def _a_record_is_removed_at_the_exit(patch: pytest.MonkeyPatch) -> None:
    original = Records.finish

    def finish(self: Records, record: Record, exit_status: ExitStatus, now: float) -> None:
        original(self, record, exit_status, now)
        self._records.pop(record.command_id, None)

    patch.setattr(Records, "finish", finish)


def _a_pruned_id_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Records.prune

    def prune(self: Records, now: float) -> None:
        original(self, now)
        for record in list(self._records.values()):
            if record.exit_status is not None:
                del self._records[record.command_id]

    patch.setattr(Records, "prune", prune)


def _sent_commands_are_reported_as_not_started(patch: pytest.MonkeyPatch) -> None:
    def facts(self: Call) -> dict[str, Any]:
        return {"command_id": self.command_id, "accepted": self.started, "started": self.started, "received": {}}

    patch.setattr(Call, "facts", facts)


def _sent_commands_are_not_marked_as_sent(patch: pytest.MonkeyPatch) -> None:
    def fail(self: CommandSink, why: HoldfastError, *, gave_up: bool) -> None:
        self.call.lose(why)
        self.end(why)

    patch.setattr(CommandSink, "fail", fail)


def _a_new_agent_accepts_the_old_session(patch: pytest.MonkeyPatch) -> None:
    original = Sandbox.attach

    def attach(self: Sandbox, hello: Hello, wire: Wire, now: float) -> None:
        original(self, dataclasses.replace(hello, agent_epoch="", next_channel=1), wire, now)

    patch.setattr(Sandbox, "attach", attach)


def _gaps_are_sent_without_credit(patch: pytest.MonkeyPatch) -> None:
    original = Presenter.pump
    patch.setattr("holdfast_wire.session.halves.CONTROL_SLACK", 8)  # a world is too short for the 4 096 there are

    def pump(self: Presenter) -> bool:
        assert self._reader is not None
        while self._started and not self.finished and (gap := self._reader.gap()) is not None:
            self._channel.send(Gap(self._channel.number, *gap))
        return original(self)

    patch.setattr(Presenter, "pump", pump)


def _gaps_are_not_sent(patch: pytest.MonkeyPatch) -> None:
    original = SpoolReader.gap

    def gap(self: SpoolReader) -> None:
        while original(self) is not None:
            pass

    patch.setattr(SpoolReader, "gap", gap)


def _output_is_dropped_once_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    original = Spool.taken

    def taken(self: Spool) -> None:
        self._trim(0)
        original(self)

    patch.setattr(Spool, "taken", taken)


def _disconnected_readers_block_the_spool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Spool, "_present", lambda self: self.readers)


def _connections_are_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientSession, "take", lambda self, number: None)


def _connections_end_with_their_connection(patch: pytest.MonkeyPatch) -> None:
    original = HeldSession.detached

    def detached(self: HeldSession) -> None:
        original(self)
        for number in [number for number in self._handlers if number >= FIRST_ACCEPTED]:
            self._handlers.pop(number).drop()

    patch.setattr(HeldSession, "detached", detached)


def _connections_are_reported_to_the_next_client_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Callers, "opener", _opener_of_the_newest)


def _opener_of_the_newest(self: Callers, context: object, channel: Any) -> ListenerHandler:
    handler = ListenerHandler(channel)
    if channel.params.get("client") == id(self._world.client):
        handler.queue = [dataclasses.replace(caller, sent=0, question_ended=False, over=False) for caller in self.all if caller.sent]
        self.listener = handler
    return handler


PLANTED = [
    _a_repeated_id_runs_again,
    _a_record_is_removed_at_the_exit,
    _a_pruned_id_is_forgotten,
    _sent_commands_are_reported_as_not_started,
    _sent_commands_are_not_marked_as_sent,
    _a_new_agent_accepts_the_old_session,
    _gaps_are_sent_without_credit,
    _gaps_are_not_sent,
    _output_is_dropped_once_it_is_sent,
    _disconnected_readers_block_the_spool,
    _connections_are_not_taken,
    _connections_end_with_their_connection,
    _connections_are_reported_to_the_next_client_too,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_caught(plant, monkeypatch, lambda seed: World(seed).run(), BATCH, (AssertionError, HoldfastError))
