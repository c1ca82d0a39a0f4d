"""How long the session engine retries a first attach; the test supplies its clock."""

from __future__ import annotations

from holdfast._options import Options
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.websocket import CloseInfo, WebSocket
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


def _closed(engine: Engine) -> WebSocket:
    """A connection that the service relayed, and that the agent has closed."""
    websocket = engine.websocket()
    websocket.open, websocket.closed = True, CloseInfo(4410, "sandbox_failed: evicted: drained")
    return websocket


def _unanswered(engine: Engine) -> WebSocket:
    """A connection that ended before the handshake was answered."""
    websocket = engine.websocket()
    websocket.feed_eof()
    assert websocket.refusal is not None
    return websocket


def test_one_attempt_without_an_answer_does_not_excuse_what_an_agent_did() -> None:
    """An agent closed each connection of an outage. That the last attempt got no answer made it a fault of the infrastructure."""
    for unanswered, fault in ((1, "workload"), (2, "infrastructure")):
        engine = Engine(OPTIONS, "sb", Event)
        engine.attached_once = True
        assert engine.broken(_closed(engine), "closed", 100.0) is not None
        for number in range(unanswered):
            at = 300.0 if number == unanswered - 1 else 101.0
            engine.begin_attempt(at)
            given_up = engine.broken(_unanswered(engine), "lost", at) is None
            assert given_up is (number == unanswered - 1)
        assert engine.error is not None
        assert (engine.error.code, engine.error.fault) == ("agent_unreachable", fault)
