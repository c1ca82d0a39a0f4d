"""Connects the local terminal to a terminal in a sandbox: raw mode, input, output and window size.

Owns the mode of the local terminal, and the end of the loop. The commands that use it are in ``subcommands.execute``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator

from holdfast import CancelledRemotelyError, HoldfastError, Terminal
from holdfast.cli.output import finish, print_json, print_note
from holdfast.cli.signals import run_on

DETACH_KEY = b"\x1d"  # Ctrl-]
PIECE_BYTES = 16 * 1024
_END_AGAIN_S = 0.25


def run_terminal(terminal: Terminal, *, attach: str | None = None, as_json: bool = False) -> int:
    """Pass keys and output on until the terminal ends or, if it has a name, the user detaches. Returns the exit status."""
    if attach and sys.stdin.isatty():
        print_note(f"holdfast: attached to {attach}; Ctrl-] detaches")
    detached = threading.Event()
    feeder = threading.Thread(target=_feed, args=(terminal, detached, bool(attach)), daemon=True)
    try:
        with _raw(), _resizing(terminal):
            feeder.start()
            for chunk in terminal:
                out = sys.stdout.buffer
                out.write(chunk.data)
                out.flush()
        result = None if detached.is_set() else terminal.wait()
    except CancelledRemotelyError:
        if not detached.is_set():
            raise
        result = None
    except BaseException:  # Ctrl-C or a signal; a terminal with a name continues, so that the user can attach again
        if attach is None:
            terminal.close()
        raise
    if result is None:
        return 0
    if as_json:
        print_json({"exit_code": result.exit_code, "signal": result.signal})
    return finish(result)


def _feed(terminal: Terminal, detached: threading.Event, may_detach: bool) -> None:
    last = b""
    try:
        while data := os.read(sys.stdin.fileno(), PIECE_BYTES):
            if may_detach and DETACH_KEY in data and sys.stdin.isatty():
                detached.set()
                terminal.detach()
                return
            terminal.write(data)
            last = data[-1:]
        if last not in (b"", b"\r", b"\n") and not sys.stdin.isatty():
            terminal.write(b"\n")  # in the middle of a line, the following end of input would have no effect
        while not detached.wait(_END_AGAIN_S):
            terminal.write(b"\x04")  # again, since a shell that has just started throws away what was typed before its prompt
    except (HoldfastError, OSError):
        pass


def size() -> tuple[int, int]:
    """Rows and columns of the terminal here."""
    try:
        known = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 24, 80
    return known.lines or 24, known.columns or 80  # a terminal without a size reports 0


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Set the local terminal to raw mode, and restore it at the end."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it has hung up
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(terminal: Terminal) -> Iterator[None]:
    """SIGWINCH, passed on."""

    def resize() -> None:
        with contextlib.suppress(HoldfastError):
            terminal.resize(*size())

    with run_on(signal.SIGWINCH, resize):
        yield
