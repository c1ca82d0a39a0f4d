"""What threads of the blocking face wait on and step through: gates, locks, and the shield against Ctrl-C.

Owns no sockets and no threads; ``threads.Link`` drives them.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from holdfast._errors import error

if TYPE_CHECKING:
    from holdfast._transport.threads import Link


class Gate:
    """A flag to wait for. Set under the link's lock; setting it wakes every waiter."""

    __slots__ = ("_link", "_open", "_waiters")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._open = False
        self._waiters: list[Any] = []

    def set(self) -> None:
        self._open = True
        if self._waiters:
            for waiter in self._waiters:
                free(waiter)
            self._waiters.clear()

    def clear(self) -> None:
        self._open = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the gate is open; False when ``timeout_s`` passed first."""
        return self._open or self._link.wait(self, timeout_s)


def free(waiter: Any) -> None:
    """Wake who waits on a lock. More than one may do so: the handler of Ctrl-C cannot ask for the link's lock first."""
    try:
        waiter.release()
    except RuntimeError:
        pass


class Turn:
    """The lock around every step of the engine. A step that an interrupt tore apart leaves ``torn``: nothing after it is trusted."""

    __slots__ = ("link", "lock", "torn")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.lock = threading.Lock()
        self.torn = False

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.torn:
            self.torn = False
            self.link.engine.fail(
                error("session_lost", "a step of this session was interrupted half-way", reason="interrupted", fault="caller")
            )
        self.torn = True

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.torn = kind is not None and not issubclass(kind, Exception)
        self.lock.release()


class Shield:
    """Holds Ctrl-C back in the main thread, so that it never tears a step apart; it is raised by the next wait, or at the end.

    Only where Python's own handler is in place. ``waiter`` is released and the link's poll is woken, so that a wait ends at once.
    Within another shield of the link it is that one: to exchange handlers costs 7 µs, which a command pays once for all its steps.
    """

    __slots__ = ("active", "link", "noted", "waiter")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.active = False
        self.noted: KeyboardInterrupt | None = None
        self.waiter: Any = None

    def __enter__(self) -> Shield:  # noqa: PYI034  inside another it is that one
        if threading.get_ident() == threading.main_thread().ident:
            around = self.link.shielded
            if around is not None:
                return around
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._note)
                self.link.shielded = self
                self.active = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.link.shielded is not self or not self.link.here:
            # Left behind: a fork, or an exception out of another signal's handler, came before it was taken away.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.default_int_handler(number, frame)
        self.hold(KeyboardInterrupt())

    def hold(self, told: KeyboardInterrupt) -> None:
        """Have the next wait raise this, or the shield's end."""
        self.noted = told
        if self.link._leader_thread == threading.get_ident():
            self.link.wake()
        if self.waiter is not None:
            free(self.waiter)

    def interrupt(self, why: KeyboardInterrupt) -> None:
        """``hold``, from another thread than the one that is behind this shield."""
        self.noted = why
        with self.link._turn.lock:
            self.link.wake()
        waiter = self.waiter
        if waiter is not None:
            free(waiter)

    def heed(self) -> None:
        """Raise what was held back."""
        told, self.noted = self.noted, None
        if told is not None:
            raise told

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.link.shielded = None
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.heed()


class Lock:
    """A lock that a fork finds free: whoever held it is not there."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def own(self) -> threading.Lock:
        """This process's."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


class Flag:
    """A gate that belongs to no link."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the flag is set; False when ``timeout_s`` passed first."""
        return self._event.wait(timeout_s)
