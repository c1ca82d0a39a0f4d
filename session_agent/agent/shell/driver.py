"""The protocol between the agent and a living shell: control lines for bash and POSIX sh, and the reports that they print.

Owns the text of the control lines and parsing of reports; no descriptor and no process. ``state`` has the texts that print and restore a
state. Control lines arrive on descriptors of their own (``control``), not on the standard input, which prompts and traps may read. Each run
is a file that the shell sources (so that ``return``, line numbers and interrupts work as in a script and job notices are not printed); the
file evaluates the command with reopened streams and all private descriptors closed. Reports go to the shell's own standard output, which
commands do not inherit. Reasons and alternatives: ``infra/decisions/0005-living-shell.md`` and ``0070-control-lines-of-a-shell.md``.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from struct import Struct
from typing import NamedTuple

from holdfast_wire.fast_dataclass import dataclass

from .control import RING_FILES
from .state import bash, posix
from .state.bash import quote
from .state.saved import SavedState

OPENED = 1 << 40
"""Added to a run's number in the report that the shell has opened the run's standard input."""
FED = 1 << 41
"""Number of the report that the shell starts to read control lines: the first time, or because an error or interrupt ended the last run."""
FENCE = 1 << 42
"""Added to a run's number in the report that the shell has taken the control lines of the run and is past them."""
NUMBERS = Struct("=32I")
"""The random numbers of 32 runs, fetched at once. A report with its number shows that the shell has read the control lines of a run."""
FEED_LINES = 8
"""How many lines wait on the standard input of bash. It reads them ahead, and needs one after each interrupt."""

_NULL = b" </dev/null"
_MOST_DIGITS = 18
"""Longest number in a report: a command that has found out the token can write anything."""

_DOUBLE_FREE = re.compile(rb"\beval: line \d+: unexpected EOF while looking for matching `\)'\n\Z")
"""Bash 5.2 prints this for an unterminated `$(` or `<(`. It frees some memory twice then, possibly during a later run."""
_RESCUED = b"builtin command eval source printf unset return set exec trap declare alias umask"


class Report(NamedTuple):
    """A report of the shell: the number of the run that it finished, the exit status, the flags (``$-``) and the directory."""

    number: int
    status: int
    flags: str
    cwd: str


@dataclass(frozen=True, slots=True)
class Private:
    """The shell's private descriptors: the read ends of its pipes for output and input, two memory files, and those for control lines."""

    out: int
    err: int
    files: tuple[int, int]
    input: int
    control: tuple[int, ...] = ()
    """Of bash: the files for control lines, the pipe with their numbers, and the files with the loop, the prompts and a command."""

    @property
    def all(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.control[:RING_FILES], *self.files, *self.control[RING_FILES:], self.input, self.out, self.err)


_BASH_FIRST = 100
"""Numbers from this one on are hardly used by scripts, and not by bash: it puts its own descriptors from 10 on and from 255 down."""
_INNER_LINES = 50
_OUTER_LINES = 20
"""Lines of the two files that make bash's loop. If ``builtin`` is disabled, what is left of each is one failing command a line."""
_BASH_FIRST_OF_FEW = 20
"""The same where a process may open fewer than ``_FEW`` descriptors: bash puts its own from the highest possible number down."""
_FEW = 256
_FEWEST = 64
_PLACES = 14
_SH_PRIVATE = Private(6, 7, (8, 9), 4)
"""POSIX sh knows descriptors of one digit only."""
SH_FEED = 5
"""The descriptor from which a POSIX shell sources control lines."""


def _places(first: int) -> Private:
    """Fourteen numbers for bash from ``first`` on. Those of the files that its loop sources must have the same tens."""
    ring, (one, other, *rest) = range(first, first + RING_FILES), range(first + RING_FILES, first + _PLACES)
    return Private(rest[-2], rest[-1], (one, other), rest[-3], (*ring, *rest[:-3]))


class ReportReader:
    """Finds reports between other text that a trap or a prompt may print to the same pipe."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._buffer = b""
        self._prompts = False

    def feed(self, data: bytes) -> list[Report]:
        """The reports that are complete with ``data``."""
        if not self._buffer and data.startswith(self._token) and data.find(b"\0") == len(data) - 1:  # nothing else: the usual case
            report = _parse(data[len(self._token) : -1])
            return [] if report is None else [report]
        buffer = self._buffer + data
        reports: list[Report] = []
        while (end := buffer.find(b"\0")) >= 0:
            start = buffer.rfind(self._token, 0, end)
            self._prompts = self._prompts or start > 0
            if start >= 0:
                report = _parse(buffer[start + len(self._token) : end])
                if report is not None:
                    reports.append(report)
            buffer = buffer[end + 1 :]
        self._buffer = buffer[-8192:]
        return reports

    def begin(self) -> None:
        """A run begins: text since the last report is a prompt."""
        self._prompts = self._prompts or bool(self._buffer)
        self._buffer = b""

    def rest(self) -> bytes:
        """The output after the last report: that of a trap on EXIT, which runs when the run's redirections are undone.

        Empty if prompts are printed to the pipe too, because the two cannot be separated.
        """
        return b"" if self._prompts or self._token in self._buffer else self._buffer


def _parse(record: bytes) -> Report | None:
    try:
        number, status, options, directory = record.split(b" ", 3)
    except ValueError:
        return None
    if not (number.isdigit() and status.isdigit() and len(number) <= _MOST_DIGITS and len(status) <= _MOST_DIGITS):
        return None
    return Report(int(number), int(status), options.decode("ascii", "replace"), directory.decode("utf-8", "replace"))


class _Dialect(ABC):
    """What the dialects share: runs, reports and dumps."""

    lowest_descriptor: int
    """The lowest number that the shell gives to copies of the descriptors that a run's redirections replace."""
    least_descriptors: int
    """How many free numbers from there on it needs for a run (tried with bash 5.2, dash 0.5.12 and busybox 1.35)."""
    _word = b"\\"
    """Before the name of a builtin, so that neither an alias nor, where that is possible, a function replaces it."""
    _source = b"\\."
    _printf = b"\\command printf"
    _no_errors = b""
    _rescue = b"\\unset -f command printf\n"
    _loaded = b""

    def __init__(self, private: Private, *, inherited: Private, tty: bool) -> None:
        """``tty``: the inherited output descriptors are a terminal, which becomes the shell's controlling terminal."""
        self.private = private
        self.inherited = inherited
        """The numbers that the shell is started with for its private descriptors."""
        self.token = os.urandom(8).hex().encode()
        self._input = _NULL
        self._streams = b" >/proc/self/fd/%d 2>/proc/self/fd/%d\n" % (private.out, private.err)
        self._one_stream = b" >/proc/self/fd/%d 2>&1\n" % private.out
        self._set_terminal = b""
        if tty:  # each run opens the terminal again, so a program that makes its descriptor non-blocking affects no other run
            self._input = b" <>/proc/self/fd/%d" % private.out
            self._streams = self._one_stream = b" >&0 2>&0\n"
            self._set_terminal = b"\\: </proc/self/fd/%d\n" % private.out

    @property
    def input(self) -> bytes:
        """The path at which a run opens the input pipe."""
        return b"/proc/self/fd/%d" % self.private.input

    def exit_trap(self) -> bytes:
        """Set a trap that writes the state when the shell ends."""
        return self._word + b"trap %s EXIT\n" % self._exit_action()

    def _exit_action(self) -> bytes:
        target = b" 2>/dev/null >>/proc/self/fd/%d" % self.private.files[0]
        return quote(b"{ %s%s%s}%s" % (self._mark(b"exit-begin"), self._state(), self._mark(b"exit-end"), target))

    def is_plain(self, dump: bytes) -> bool:
        """Whether a shell in this state has no functions, aliases, traps, prompts or options that change what commands do."""
        return False

    def may_crash_after(self, stderr: bytes) -> bool:
        """Whether a run whose stderr ends like this has left a shell that may crash at any time."""
        return False

    def run(self, number: int, slot: int) -> bytes:
        """Control lines for a run whose text is in memory file ``slot``."""
        return b"%s /proc/self/fd/%d\n" % (self._source, self.private.files[slot]) + self._end(number)

    def _end(self, number: int) -> bytes:
        """The report of a run, as its last line."""
        return self.report(number)

    def report(self, number: int) -> bytes:
        """Ask for a report."""
        return b"%s '%s%%s\\0' \"%d $? $- ${PWD-}\"\n" % (self._printf, self.token, number)

    def text(self, number: int, run: bytes, *, stdin: bytes | None, last_status: int, tag: int | None, one_stream: bool = False) -> bytes:
        """The memory file of a run, which ``run`` evaluates. ``$?`` begins as the previous run left it.

        ``tag`` marks its processes, where the shell can do that.

        ``one_stream``: its standard error is its standard output.
        """
        prefix = b""
        if last_status:
            status = b"__holdfast_status() { %sunset -f __holdfast_status; %sreturn %d; }; __holdfast_status && %s:\n"
            prefix = status % (self._word, self._word, last_status, self._word)  # ``&&``: no trap on ERR
        streams = self._one_stream if one_stream else self._streams
        if stdin is None:
            return prefix + run + self._input + streams
        opened = self.report(number + OPENED)
        return prefix + b"{\n" + opened + run + streams + b"} <" + quote(stdin) + b"\n"

    def snapshot(self, number: int, slot: int) -> bytes:
        """Write the shell's state to memory file ``slot``."""
        target = b" >|/proc/self/fd/%d%s\n" % (self.private.files[slot], self._no_errors)  # also under ``set -C``
        return b"{ " + self._state() + self._mark(b"end %d" % number) + b"}" + target

    def rescue(self) -> bytes:
        """Remove functions that have replaced what control lines use."""
        return self._rescue

    def load(self, slot: int) -> bytes:
        """Control lines that load the state in memory file ``slot``."""
        return b"%s /proc/self/fd/%d </dev/null >/dev/null 2>&1\n" % (self._source, self.private.files[slot]) + self._loaded

    @abstractmethod
    def restore(self, state: SavedState) -> bytes:
        """The text of the memory file that restores ``state`` in a new shell."""

    @abstractmethod
    def evaluate(self, script: bytes) -> bytes:
        """Evaluate a command with all private descriptors closed."""

    @abstractmethod
    def _state(self) -> bytes:
        """Print the shell's variables, functions, aliases and umask, as far as it can."""

    def _mark(self, what: bytes) -> bytes:
        """Print a line that separates the parts of a dump."""
        return b"%s '\\n#%%s\\n' '%s %s'; " % (self._printf, self.token, what)


class BashDialect(_Dialect):
    """Bash, started as interactive so that it reads control lines again after an interrupt, but set up like a non-interactive one."""

    kind = "bash"
    lowest_descriptor, least_descriptors = 3, 4
    _word = b"\\builtin "
    _source = b"\\builtin source"
    _printf = b"\\builtin printf"
    _rescue = b"POSIXLY_CORRECT=y\n\\unset -f %s\n\\unset POSIXLY_CORRECT\n\\enable builtin printf eval source\n" % _RESCUED
    """In POSIX mode special builtins are found before functions."""
    _loaded = b"\\builtin set +o history +o histexpand\n"

    def __init__(self, path: str, *, nofile: int = _FEW, tty: bool = False) -> None:
        """``nofile``: how many descriptors a process may open, -1 for no limit."""
        first = _BASH_FIRST_OF_FEW if 0 <= nofile < _FEW else _BASH_FIRST
        inherited = private = _places(first)
        if not 0 <= nofile < _FEWEST:  # else there is no room to move them: commands inherit them
            private = _places(first + _PLACES)
        super().__init__(private, inherited=inherited, tty=tty)
        *ring, self._pipe, self._inner, self._outer, self._prompts, self._command = private.control
        self.first_digit = ring[0] % 10
        """The last digit of the number of the first file for control lines."""
        self._digit = b"__holdfast_" + self.token[:6]
        """A variable, unset during runs: the number of the next control lines, or number and status of the run that has just ended."""
        self.argv = [path, "--norc", "--noprofile", "--noediting", "-i"]
        self._seen: set[int] = set()

    def prepare(self) -> bytes:
        """The first control lines."""
        return (
            (
                self._hide() + self._set_terminal + b"\\builtin set +o history +o histexpand +o monitor\n\\builtin history -c\n"
                b"\\builtin unset -v HISTFILE MAILCHECK PROMPT_COMMAND PS0; PS1= PS2=; \\builtin shopt -u checkwinsize\n"
            )
            + self.exit_trap()
            + self.feed_line() * FEED_LINES
        )

    def feed_line(self) -> bytes:
        """A line on the standard input: read control lines until an interrupt. Its report has the status of what was interrupted."""
        again = b"%s '%s%%s\\0' \"${%s-} $- ${PWD-}\"; " % (self._printf, self.token, self._digit)
        return self.report(FED)[:-1] + b"; " + again + b"\\builtin source /proc/self/fd/%d </dev/null\n" % self._outer

    def _end(self, number: int) -> bytes:
        """With the status in a variable, too, which ``feed_line`` prints: a function named ``builtin`` prevents the report only."""
        return b'%s="%d $?"; %s \'%s%%s\\0\' "$%s $- ${PWD-}"\n' % (self._digit, number, self._printf, self.token, self._digit)

    def files(self) -> tuple[bytes, bytes, bytes]:
        """The contents of the last three private descriptors: the inner and the outer loop, and what runs the prompts.

        The loops are lists of equal lines: in a loop of bash's own, ``break`` in a run would end it. TMOUT is the time limit of a ``read``
        without ``-t``. ``-N``: IFS does not matter.
        """
        read = b'\\builtin read "-r${TMOUT:+t99999999}" -N1 -u %d %s && ' % (self._pipe, self._digit)
        step = read + b'\\builtin source "/proc/self/fd/%d$%s"\n' % (self.private.files[0] // 10, self._digit)
        again = b"\\builtin source /proc/self/fd/%d\n" % self._inner
        prompts = (
            b"\\builtin eval \"${PROMPT_COMMAND[@]/%/$'\\n'}\"\n"
            b'\\builtin test -z "${PS1-}" || \\builtin : "${PS1@P}"\n\\builtin test -z "${PS0-}" || \\builtin : "${PS0@P}"\n'
        )
        return step * _INNER_LINES, again * _OUTER_LINES, prompts

    def shortest(self, text: bytes, number: int) -> bytes:
        """``text`` of a run that cannot return from its file, with its report. The loop's standard input is ``/dev/null`` already."""
        for streams in (self._streams, self._one_stream):
            end = _NULL + streams
            if text.endswith(end):
                return text[: -len(end)] + streams + self._end(number)
        return text + self._end(number)

    def control(self, lines: bytes) -> bytes:
        """The content of a file for control lines."""
        return b"\\builtin unset -v %s\n" % self._digit + lines

    def prompt(self) -> bytes:
        """Run what an interactive bash runs before it reads a command.

        It reads no standard input, cannot reach control lines, and what it redirects is undone: reports go to the standard output.
        """
        return (
            b'\\builtin test -z "${PROMPT_COMMAND+x}${PS1-}${PS0-}" || '
            b"\\builtin source /proc/self/fd/%d </dev/null >/dev/null 2>&1\n" % self._prompts
        )

    def _hide(self) -> bytes:
        """Make the private descriptors close-on-exec, so that commands do not inherit them, at no cost per command.

        While a group redirects descriptors, bash keeps copies of them from number 10 on, which are close-on-exec; so are duplicates of
        these copies. If a version of bash does this differently, the descriptors are only moved, and commands inherit them.
        """
        pairs = tuple(zip(self.inherited.all, self.private.all, strict=True))
        moved = b"".join(b" %d<&%d" % (new, 10 + at) for at, (_, new) in enumerate(pairs))
        closed = b"".join(b" %d<&-" % old for old, _ in pairs)
        same = b" && ".join(b"/proc/self/fd/%d -ef /proc/self/fd/%d" % pair for pair in pairs)
        plain = b"".join(b" %d<&%d" % (new, old) for old, new in pairs)
        if self.inherited == self.private:
            return b""
        return b"{ \\exec%s; }%s\n[[ %s ]] || \\exec%s\n\\exec%s\n" % (moved, closed, same, plain, closed)

    def text(self, number: int, run: bytes, *, stdin: bytes | None, last_status: int, tag: int | None, one_stream: bool = False) -> bytes:
        text = super().text(number, run, stdin=stdin, last_status=last_status, tag=tag, one_stream=one_stream)
        return text if tag is None else b"\\builtin ulimit -SR %d\n" % tag + text

    def is_plain(self, dump: bytes) -> bool:
        own_trap = b"trap -- %s EXIT\n" % self._exit_action()
        return bash.is_plain(dump, b"\n#%s functions\n" % self.token, own_trap)

    def may_crash_after(self, stderr: bytes) -> bool:
        return _DOUBLE_FREE.search(stderr[-200:]) is not None

    def evaluate(self, script: bytes) -> bytes:
        return self._closing(b"\\builtin eval " + quote(script))

    def evaluate_file(self) -> bytes:
        """``evaluate`` for a command in a memory file of its own, whose time of access shows that the shell has begun it."""
        return self._closing(b"\\builtin source /proc/self/fd/%d" % self._command)

    def _closing(self, run: bytes) -> bytes:
        return b"{ " + run + b"".join(b" %d<&-" % fd for fd in sorted(self._seen)) + b"\n}" if self._seen else run

    def rotate(self, number: int, out: bytes | None, err: bytes | None) -> bytes:
        """Replace the private output pipes by the named pipes at these paths."""
        old = new = b""
        for path, descriptor in ((out, self.private.out), (err, self.private.err)):
            if path is not None:
                # closed first: bash restores a close-on-exec descriptor after a redirection, taking it for one of its own
                old += b" %d<&-" % descriptor
                new += b" %d<%s" % (descriptor, quote(path))
                self._seen.add(descriptor)  # a descriptor that is opened like this is not close-on-exec
        return b"\\exec%s\n\\exec%s\n" % (old, new) + self.report(number)

    def restore(self, state: SavedState) -> bytes:
        return bash.restore(state, self._digit, self.exit_trap())

    def _state(self) -> bytes:
        return bash.print_state(self._mark(b"functions"))


class ShDialect(_Dialect):
    """A POSIX shell (dash, busybox). It cannot print its functions, so they are lost in a rebuild."""

    kind = "sh"
    lowest_descriptor, least_descriptors = 10, 10
    _no_errors = b" 2>/dev/null"

    def __init__(self, path: str, *, tty: bool = False) -> None:
        """A line on the standard input makes the shell source control lines, so that prompts cannot read them.

        busybox has two more faults in reading standard input: the exit of a child interrupts the read (EINTR), which it takes for the end
        of the input, and applets that run without an exec read the lines that it has read ahead. Sourcing has neither.
        """
        applet = ["sh"] if path.endswith("/busybox") else []
        super().__init__(_SH_PRIVATE, inherited=_SH_PRIVATE, tty=tty)
        self.argv = [path, *applet, "-i"]
        self._closed = b"".join(b" %d>&-" % fd for fd in (*_SH_PRIVATE.all, SH_FEED)) + b"\n"

    def control(self, lines: bytes) -> bytes:
        """The control lines as they are written."""
        return lines

    def prompt(self) -> bytes:
        """Nothing: a prompt is printed only when the shell starts to read control lines."""
        return b""

    def feed_line(self) -> bytes:
        """The line on the standard input. Its report has the status of the error that ended the last run."""
        return self.report(FED)[:-1] + b"; \\. /proc/self/fd/%d\n" % SH_FEED

    def prepare(self) -> bytes:
        """The first control lines."""
        return self._set_terminal + b"\\set +m; PS1= PS2=\n" + self.exit_trap()

    def evaluate(self, script: bytes) -> bytes:
        # two levels of redirection: if the inner one cannot be undone (after ``ulimit -n 20``), the outer one still is
        return b"{ \\eval " + quote(script) + self._closed + b"}"

    def rotate(self, number: int, out: bytes | None, err: bytes | None) -> bytes:
        """Replace the private output pipes by the named pipes at these paths."""
        new = b""
        if out is not None:
            new += b" %d<%s" % (self.private.out, quote(out))
        if err is not None:
            new += b" %d<%s" % (self.private.err, quote(err))
        return b"\\exec%s; " % new + self.report(number)

    def restore(self, state: SavedState) -> bytes:
        return posix.restore(state, self.exit_trap())

    def _state(self) -> bytes:
        return posix.print_state(self._mark(b"alias"), self._mark(b"others"))


Dialect = BashDialect | ShDialect
