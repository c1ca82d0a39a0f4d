"""Threads that wait on one connection: one of them leads, and there is always one that does."""

from __future__ import annotations

import socket
import threading

from holdfast._options import Options
from holdfast._transport.threads import Link

from tests.support.until import until


def test_a_thread_that_is_asked_to_lead_while_it_leaves_hands_the_lead_on() -> None:
    link = Link(Options(url="http://127.0.0.1:1", api_key="key"), "sb")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link._socket = ours
        link._leader, leaving, staying = link.gate(), link.gate(), link.gate()
        threads = [threading.Thread(target=link.wait, args=(gate, 20.0), daemon=True) for gate in (leaving, staying)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            until(lambda count=count: len(link._followers) == count, deadline_s=20, what="a follower")  # type: ignore[misc]
        with link._turn.lock:
            first = link._followers[0]
            leaving.set()
            until(first.locked, deadline_s=20, what="the first to be awake and to want the lock")
            link._leader = None  # as the leader does that resigns just now
            link._promote()
        try:
            until(lambda: link._leader is staying, deadline_s=5, what="the second to lead")
        finally:
            with link._turn.lock:
                staying.set()
            link.wake()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
