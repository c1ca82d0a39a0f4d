"""Signals by the ways in which callers may name them: by a name, by Linux's number, or as a member of ``signal.Signals``.

Pure. Owns the list of Linux's signals, since the client may run on another system. Called by both APIs.
"""

from __future__ import annotations

from holdfast._arguments import bad

_NUMBERED = (
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT",
    "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
)  # fmt: skip
"""From 1."""
_NAMES = frozenset({*_NUMBERED, "CLD", "IOT", "POLL", "RTMIN", "RTMAX"})


def signal_of(signal: str | int) -> str:
    """The name of a signal without its prefix. Raises ``InvalidArgumentError``."""
    name = getattr(signal, "name", signal)  # a member of ``signal.Signals``: its number differs between systems, its name does not
    if not isinstance(name, bool) and (isinstance(name, int) or (isinstance(name, str) and name.isdecimal() and len(name) < 3)):
        name = _NUMBERED[int(name) - 1] if 1 <= int(name) <= len(_NUMBERED) else None
    name = name.upper().removeprefix("SIG") if isinstance(name, str) else ""
    if name not in _NAMES:
        raise bad(f"there is no signal {signal!r:.40}", hint="a name such as 'INT' or 'SIGTERM', or its number on Linux")
    return name
