"""The protocol between agent and living shell: the text of the driver, in bash and in POSIX sh, and its reports.

Owns the control lines, the quoting and the reports; no descriptor and no process. The shell reads control lines from its own
standard input; each run is a file it sources (so that ``return``, line numbers and an interrupt behave, and job notices stay silent),
which evaluates the command with its streams re-opened and every private descriptor closed. Reports travel on the shell's own
standard output, which no command sees. Why, and what else was tried: ``infra/decisions/0005-living-shell.md``.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from holdfast_wire.records import dataclass

OPENED = 1 << 40
"""Added to a run's number: the shell has opened the run's standard input."""
FED = 1 << 41
"""The number of a fed shell's report that it begins to read control lines: for the first time, or because an error ended the last run."""

_OPTION_LINE = re.compile(rb'^declare -r(?:x)? (SHELLOPTS|BASHOPTS)="([a-z0-9_:-]*)"$', re.MULTILINE)
_BASH_DEFAULT_ON = (b"braceexpand", b"hashall", b"interactive-comments")
_PLAIN_REST = re.compile(rb"umask [0-7]+\n")
_MEDDLING = re.compile(rb"^declare -(?:\S+ (?:PROMPT_COMMAND|PS0|MAILCHECK)=|\S+ SHELLOPTS=\S*(?:keyword|posix|xtrace))", re.MULTILINE)
"""Variables that bash expands at its prompt; options by which arguments are assignments, builtins assign, or PS4 is expanded."""
_UNSOUND = re.compile(rb"\beval: line \d+: unexpected EOF while looking for matching `\)'\n\Z")
"""Bash 5.2 prints this for `$(` or `<(` without an end, and has freed by then what it will free again: soon, or in the middle of a later
run.
"""
_NEVER_RESTORED = frozenset({b"emacs", b"vi", b"history", b"histexpand", b"monitor", b"noexec", b"onecmd"})
_RESCUED = "builtin command eval source printf unset return set exec trap declare alias umask"


class Report(NamedTuple):
    """The shell finished run ``number``: its exit status, its flags (``$-``) and its directory."""

    number: int
    status: int
    flags: str
    cwd: str


@dataclass(frozen=True, slots=True)
class Private:
    """The shell's private descriptors: read ends of its output pipes, and two memory files."""

    out: int
    err: int
    files: tuple[int, int]

    @property
    def all(self) -> tuple[int, int, int, int]:
        """All four."""
        return (self.out, self.err, *self.files)

    def above(self) -> Private:
        """Four numbers higher than all of these."""
        base = max(self.all) + 1
        return Private(base, base + 1, (base + 2, base + 3))


class ReportReader:
    """Finds reports among whatever else a command, a trap or a prompt managed to print there."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._buffer = b""
        self._prompts = False

    def feed(self, data: bytes) -> list[Report]:
        """The reports that are complete with ``data``."""
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
        """A run begins: what was printed there since the last report is a prompt's."""
        self._prompts = self._prompts or bool(self._buffer)
        self._buffer = b""

    def rest(self) -> bytes:
        """What was printed there after the last report by a trap on EXIT, which runs when the redirections are undone.

        Nothing where prompts are printed too, from which it cannot be separated.
        """
        return b"" if self._prompts or self._token in self._buffer else self._buffer


def _parse(record: bytes) -> Report | None:
    fields = record.split(b" ", 3)
    if len(fields) != 4 or not fields[0].isdigit() or not fields[1].isdigit():
        return None
    return Report(int(fields[0]), int(fields[1]), fields[2].decode("ascii", "replace"), fields[3].decode("utf-8", "replace"))


def quote(text: bytes) -> bytes:
    """``text`` as one word, in any shell."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _terminal(descriptor: int) -> tuple[bytes, bytes, bytes]:
    """Input and output of a run on a terminal, and the line by which a shell takes it: a session's first process that opens one has it.

    Each run opens it anew: a program that makes its own not blocking does it to no other.
    """
    return b" <>/proc/self/fd/%d" % descriptor, b" >&0 2>&0\n", b"\\: </proc/self/fd/%d\n" % descriptor


class BashDialect:
    """Bash, started interactive (an interrupt comes back to the reading of control lines) and made to look as if it were not."""

    kind = "bash"

    def __init__(self, path: str, inherited: Private, *, tty: bool = False) -> None:
        """``tty``: what is inherited for output is a terminal, which becomes the shell's own."""
        self.argv = [path, "--norc", "--noprofile", "--noediting", "-i"]
        self._inherited = inherited
        self._seen: set[int] = set()
        self.private = inherited.above()
        self.token = os.urandom(8).hex().encode()
        self._input = b" </dev/null"
        self._streams = b" >/proc/self/fd/%d 2>/proc/self/fd/%d\n" % (self.private.out, self.private.err)
        self._take = b""
        if tty:
            self._input, self._streams, self._take = _terminal(self.private.out)

    def prepare(self) -> bytes:
        """The first control lines."""
        return (
            self._hide() + self._take + b"\\builtin set +o history +o histexpand +o monitor\n\\builtin history -c\n"
            b"\\builtin unset -v HISTFILE MAILCHECK PROMPT_COMMAND PS0; PS1= PS2=; \\builtin shopt -u checkwinsize\n"
        ) + self.exit_trap()

    def _hide(self) -> bytes:
        """Have the private descriptors closed on exec, so that no command inherits them, at no cost per command.

        Bash keeps such copies of what a group redirects, from 10 up, and what it duplicates from one of them is closed on exec
        too. Where another bash does it differently the descriptors are merely moved, and commands see them.
        """
        pairs = tuple(zip(self._inherited.all, self.private.all, strict=True))
        moved = b"".join(b" %d<&%d" % (new, 10 + at) for at, (_, new) in enumerate(pairs))
        closed = b"".join(b" %d<&-" % old for old, _ in pairs)
        same = b" && ".join(b"/proc/self/fd/%d -ef /proc/self/fd/%d" % pair for pair in pairs)
        plain = b"".join(b" %d<&%d" % (new, old) for old, new in pairs)
        return b"{ \\exec%s; }%s\n[[ %s ]] || \\exec%s\n\\exec%s\n" % (moved, closed, same, plain, closed)

    def exit_trap(self) -> bytes:
        """Make a shell that ends report its state."""
        return b"\\builtin trap %s EXIT\n" % self._farewell()

    def _farewell(self) -> bytes:
        target = b" 2>/dev/null >>/proc/self/fd/%d" % self.private.files[0]
        return quote(b"{ %s%s%s}%s" % (self._say(b"exit-begin"), self._state(), self._say(b"exit-end"), target))

    def is_plain(self, dump: bytes) -> bool:
        """Whether a shell of this state runs only its commands: no functions, aliases, traps, prompts or options interfere."""
        variables, _, rest = dump.partition(b"\n#%s rest\n" % self.token)
        return (
            _PLAIN_REST.fullmatch(rest.removesuffix(b"trap -- %s EXIT\n" % self._farewell())) is not None
            and b'\ndeclare -- PS1=""\ndeclare -- PS2=""\n' in variables
            and _MEDDLING.search(variables) is None
        )

    def is_unsound(self, stderr: bytes) -> bool:
        """Whether a run that ended with these words has left a shell that may crash at any time."""
        return _UNSOUND.search(stderr[-200:]) is not None

    def run(self, number: int, slot: int) -> bytes:
        """Control lines for a run whose text is in memory file ``slot``."""
        return b"\\builtin source /proc/self/fd/%d\n" % self.private.files[slot] + self.report(number)

    def report(self, number: int) -> bytes:
        """Ask for a report."""
        return b"\\builtin printf '%s%%s\\0' \"%d $? $- ${PWD-}\"\n" % (self.token, number)

    def text(self, number: int, script: bytes, *, stdin: bytes | None, last_status: int, tag: int | None) -> bytes:
        """The memory file of a run. ``$?`` begins as the previous run left it."""
        prefix = b""
        if last_status:
            prefix = (
                b"__holdfast_status() { \\builtin unset -f __holdfast_status; \\builtin return %d; }; __holdfast_status\n" % last_status
            )
        mark = b"" if tag is None else b"\\builtin ulimit -SR %d\n" % tag
        run = b"\\builtin eval " + quote(script)
        if self._seen:
            run = b"{ " + run + b"".join(b" %d<&-" % fd for fd in sorted(self._seen)) + b"\n}"
        if stdin is None:
            return mark + prefix + run + self._input + self._streams
        opened = self.report(number + OPENED)
        return mark + prefix + b"{\n" + opened + run + self._streams + b"} <" + quote(stdin) + b"\n"

    def snapshot(self, number: int, slot: int) -> bytes:
        """Write the shell's state to memory file ``slot``."""
        target = b" >|/proc/self/fd/%d\n" % self.private.files[slot]  # also under ``set -C``
        return b"{ " + self._state() + self._say(b"end %d" % number) + b"}" + target

    def rotate(self, number: int, out: bytes | None, err: bytes | None) -> bytes:
        """Read the named pipes instead of the private ones from now on."""
        old = new = b""
        for path, descriptor in ((out, self.private.out), (err, self.private.err)):
            if path is not None:
                # closed first: bash puts back a descriptor that is closed on exec, taking it for one of its own
                old += b" %d<&-" % descriptor
                new += b" %d<%s" % (descriptor, quote(path))
                self._seen.add(descriptor)  # what is merely opened is not closed on exec
        return b"\\exec%s\n\\exec%s\n" % (old, new) + self.report(number)

    def rescue(self, number: int) -> bytes:
        """Report although functions stand where the driver's builtins were: in POSIX mode special builtins come first."""
        names = b" ".join(word.encode() for word in _RESCUED.split())
        return b"POSIXLY_CORRECT=y\n\\unset -f %s\n\\unset POSIXLY_CORRECT\n\\enable builtin printf eval source\n" % names + self.report(
            number
        )

    def restore(self, dump: bytes, old_token: bytes) -> bytes:
        """The memory file that makes a fresh shell as the dump describes."""
        options = {name: value.split(b":") for name, value in _OPTION_LINE.findall(dump)}
        shell_options = [o for o in options.get(b"SHELLOPTS", []) if o and o not in _NEVER_RESTORED]
        bash_options = [o for o in options.get(b"BASHOPTS", []) if o and o != b"expand_aliases"]
        lines = [
            b"for __holdfast in ${BASHOPTS//:/ }; do shopt -u $__holdfast; done",
            b"shopt -s " + b" ".join(bash_options) if bash_options else b":",
            b"unset -v __holdfast $(compgen -e)",  # what of the environment is not in the dump was unset
            dump,
            b"__holdfast=${OLDPWD-}",
            b'builtin cd -- "$PWD"',
            b"OLDPWD=$__holdfast; unset __holdfast",
        ]
        if old_token in dump.partition(b"\n#%s rest\n" % old_token)[2]:
            lines.append(self.exit_trap())
        lines += [b"set +o " + option for option in _BASH_DEFAULT_ON if option not in shell_options]
        lines.append(b"shopt -s expand_aliases")
        lines += [b"set -o " + option for option in shell_options]
        return b"\n".join(lines) + b"\n"

    def load(self, number: int, slot: int) -> bytes:
        """PipeReader the restored state and report."""
        return (
            b"\\builtin source /proc/self/fd/%d </dev/null >/dev/null 2>&1\n" % self.private.files[slot]
            + b"\\builtin set +o history +o histexpand\n"
            + self.report(number)
        )

    def _state(self) -> bytes:
        # the mask twice where one of them was disabled: the state is unknown then (``is_plain``)
        mask = b"\\builtin umask -p; "
        others = b"\\builtin declare -f; \\builtin alias -p || %s%s\\builtin trap -p || %s" % (mask, mask, mask)
        return b"\\builtin declare -p; " + self._say(b"rest") + others

    def _say(self, what: bytes) -> bytes:
        return b"\\builtin printf '\\n#%%s\\n' '%s %s'; " % (self.token, what)


class ShDialect:
    """A POSIX shell (dash, busybox). It cannot print its functions: those do not survive a rebuild."""

    kind = "sh"

    def __init__(self, path: str, private: Private, feed: int | None = None, *, tty: bool = False) -> None:
        """``feed``: where a *fed* shell reads control lines from. The one line that its standard input always holds makes it do so.

        A busybox has to be fed. Where it reads its own standard input, the end of any child looks like the end of the input to it
        (EINTR), and programs that it runs without an exec find what it has read ahead. It does neither to a file that it sources.
        """
        applet = ["sh"] if path.endswith("/busybox") else []
        self.argv = [path, *applet, "-i"]
        self.private = private
        self._feed = feed
        self.token = os.urandom(8).hex().encode()
        hidden = private.all if feed is None else (*private.all, feed)
        self._closed = b"".join(b" %d>&-" % fd for fd in hidden) + b"\n"
        self._input = b" </dev/null"
        self._streams = b" >/proc/self/fd/%d 2>/proc/self/fd/%d\n" % (private.out, private.err)
        self._take = b""
        if tty:
            self._input, self._streams, self._take = _terminal(private.out)

    def feed_line(self) -> bytes:
        """What a fed shell finds on its standard input. The report has the status that an error left."""
        assert self._feed is not None
        return self.report(FED)[:-1] + b"; \\. /proc/self/fd/%d\n" % self._feed

    def prepare(self) -> bytes:
        """The first control lines. The prompt stays: it shows that an error discarded the control lines."""
        return self._take + b"\\set +m; PS1='$ ' PS2=\n" + self.exit_trap()

    def exit_trap(self) -> bytes:
        """Make a shell that ends report its state."""
        target = b" 2>/dev/null >>/proc/self/fd/%d" % self.private.files[0]
        body = b"{ %s%s%s}%s" % (self._say(b"exit-begin"), self._state(), self._say(b"exit-end"), target)
        return b"\\trap %s EXIT\n" % quote(body)

    def is_plain(self, dump: bytes) -> bool:
        """Never known: it cannot print its functions."""
        return False

    def is_unsound(self, stderr: bytes) -> bool:
        """None of these is known to crash."""
        return False

    def run(self, number: int, slot: int) -> bytes:
        """Control lines for a run whose text is in memory file ``slot``."""
        return b"\\. /proc/self/fd/%d\n" % self.private.files[slot] + self.report(number)

    def report(self, number: int) -> bytes:
        """Ask for a report."""
        return b"\\command printf '%s%%s\\0' \"%d $? $- ${PWD-}\"\n" % (self.token, number)

    def text(self, number: int, script: bytes, *, stdin: bytes | None, last_status: int, tag: int | None) -> bytes:
        """The memory file of a run. ``$?`` begins as the previous run left it."""
        prefix = b""
        if last_status:
            prefix = b"__holdfast_status() { \\unset -f __holdfast_status; \\return %d; }; __holdfast_status\n" % last_status
        # two levels of redirection: where the inner one cannot be undone (``ulimit -n 20``), the outer one still is
        run = b"{ \\eval " + quote(script) + self._closed
        if stdin is None:
            return prefix + run + b"}" + self._input + self._streams
        opened = self.report(number + OPENED)
        return prefix + b"{\n" + opened + run + b"}" + self._streams + b"} <" + quote(stdin) + b"\n"

    def snapshot(self, number: int, slot: int) -> bytes:
        """Write the shell's state to memory file ``slot``."""
        target = b" >|/proc/self/fd/%d 2>/dev/null\n" % self.private.files[slot]
        return b"{ " + self._state() + self._say(b"end %d" % number) + b"}" + target

    def rotate(self, number: int, out: bytes | None, err: bytes | None) -> bytes:
        """Read the named pipes instead of the private ones from now on."""
        new = b""
        if out is not None:
            new += b" %d<%s" % (self.private.out, quote(out))
        if err is not None:
            new += b" %d<%s" % (self.private.err, quote(err))
        return b"\\exec%s; " % new + self.report(number)

    def rescue(self, number: int) -> bytes:
        """Report although a function stands where a utility was."""
        return b"\\unset -f command printf\n" + self.report(number)

    def restore(self, dump: bytes, old_token: bytes) -> bytes:
        """The memory file that makes a fresh shell as the dump describes."""
        ours = self.exit_trap() if old_token in dump else b""
        dump, _, rest = dump.partition(b"\n#%s alias\n" % old_token)
        aliases, _, mask = rest.partition(b"\n#%s umask\n" % old_token)
        dump += b"\n" + _prefix_words(aliases, b"alias ") + b"\numask " + (mask.strip() or b"022")
        return dump + b'\n__holdfast=${OLDPWD-}\ncd -- "$PWD"\nOLDPWD=$__holdfast; unset __holdfast\n' + ours

    def load(self, number: int, slot: int) -> bytes:
        """PipeReader the restored state and report."""
        return b"\\. /proc/self/fd/%d </dev/null >/dev/null 2>&1\n" % self.private.files[slot] + self.report(number)

    def _state(self) -> bytes:
        return (
            b"\\set; \\export -p; \\readonly -p; " + self._say(b"alias")[:-2] + b"; \\alias; " + self._say(b"umask")[:-2] + b"; \\umask; "
        )

    def _say(self, what: bytes) -> bytes:
        return b"\\command printf '\\n#%%s\\n' '%s %s'; " % (self.token, what)


Dialect = BashDialect | ShDialect


def _prefix_words(text: bytes, prefix: bytes) -> bytes:
    """``prefix`` before every line that does not begin inside quotes."""
    lines: list[bytes] = []
    open_quote = 0
    for line in text.split(b"\n"):
        lines.append((prefix if line and not open_quote else b"") + line)
        for byte in line:
            if open_quote:
                open_quote = 0 if byte == open_quote else open_quote
            elif byte in b"'\"":
                open_quote = byte
    return b"\n".join(lines)


def cut_snapshot(data: bytes, token: bytes, number: int) -> bytes | None:
    """The complete dump of run ``number`` in a memory file, None where there is none."""
    end = data.find(b"\n#%s end %d\n" % (token, number))
    return data[:end] if end >= 0 else None


def cut_farewell(data: bytes, token: bytes) -> bytes | None:
    """The state that an ending shell reported, None where it had no time to."""
    begin_mark, end_mark = b"\n#%s exit-begin\n" % token, b"\n#%s exit-end\n" % token
    end = data.rfind(end_mark)
    begin = data.rfind(begin_mark, 0, end)
    return data[begin + len(begin_mark) : end] if 0 <= begin < end else None
