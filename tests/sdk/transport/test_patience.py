"""How long the session engine retries a first attach; the test supplies its clock."""

from __future__ import annotations

from holdfast._options import Options
from holdfast._transport.session.engine import Engine
from holdfast._transport.threads.events import Event

OPTIONS = Options("http://service", "k", connect_timeout_s=10.0, resume_timeout_s=120.0)


def test_a_service_that_accepts_and_does_not_answer_is_given_up_when_its_answer_is_late() -> None:
    engine = Engine(OPTIONS, "sb", Event)
    assert engine.begin_attempt(100.0) == 10.0
    assert engine.answer_s(100.5) == 30.0
    assert engine.broken(engine.websocket(), "no answer", 130.5) is None
    assert engine.error is not None


def test_a_service_that_refuses_connections_is_retried_until_connect_timeout_s() -> None:
    engine, now = Engine(OPTIONS, "sb", Event), 100.0
    engine.begin_attempt(now)
    while (delay_s := engine.broken(None, "refused", now)) is not None:
        now += delay_s
        assert 0 < engine.begin_attempt(now) <= 10.0
    assert 110.0 <= now <= 110.1


def test_the_wait_for_the_answer_to_a_resume_is_limited_by_connect_timeout_s() -> None:
    engine = Engine(OPTIONS, "sb", Event)
    engine.attached_once = True
    assert engine.begin_attempt(100.0) == engine.answer_s(100.0) == 10.0


def test_a_drain_ends_the_old_connection_and_not_the_next() -> None:
    """A command that was sent while the next connection was being made used to end that one."""
    engine = Engine(OPTIONS, "sb", Event)
    engine.attached_once, engine.leave, engine._leave_at = True, True, 100.0
    assert engine.broken(engine.websocket(), "left", 100.0) is not None
    engine.begin_attempt(100.1)
    engine.tick(100.2)
    assert not engine.leave
