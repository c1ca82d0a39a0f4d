"""Printing of tables, JSON and errors, and of text from sandboxes, which must not control the user's terminal.

Owns escaping. Output of a command is written to a file or pipe byte for byte, as with other remote shells; only a terminal is protected,
and only if the command does not run on a terminal of its own. Names, messages and labels are always escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.command_line import Arguments, UsageError

if TYPE_CHECKING:
    from holdfast._results import CommandResult

_ALLOWED = frozenset("\n\t")


def escape(text: str) -> str:
    """``text`` with its control characters escaped, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _ALLOWED else c.encode("unicode_escape").decode() for c in text)


_COLOURS = rb"\x1b\[[0-9;:]{0,32}[mK]"
_CHARACTERS = rb"\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
_CONTROLS = rb"\x1b|\xc2[\x80-\x9f]|[\x80-\x9f]"
"""Escape characters and C1 control characters, such as CSI (U+009B), in UTF-8 or as single bytes."""
_UNFINISHED = rb"(?:\x1b(?:\[[0-9;:]{0,32})?|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
"""Compiled at their first use, because most commands print no output of a sandbox."""


def escape_bytes(data: bytes) -> bytes:
    """``data`` with escape and C1 control characters as text. Complete characters of UTF-8 are kept."""
    return re.sub(rb"(" + _CHARACTERS + rb")|" + _CONTROLS, _as_text, data)


class TerminalFilter:
    """Filters output for a terminal: colours and the erasing of a line are kept; every other escape character, and every control character
    above U+007F, is replaced by text.

    A sequence or character may arrive in pieces: its beginning is held back until the rest has arrived or ``end`` is called.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be written now."""
        if not self._held and data.isascii() and b"\x1b" not in data:
            return data
        data = self._held + data
        unfinished = re.search(_UNFINISHED, data)
        self._held = unfinished.group() if unfinished else b""
        return re.sub(rb"(" + _COLOURS + rb"|" + _CHARACTERS + rb")|" + _CONTROLS, _as_text, data[: len(data) - len(self._held)])

    def end(self) -> bytes:
        """The bytes that were held back."""
        held, self._held = self._held, b""
        return escape_bytes(held)


def _as_text(found: re.Match[bytes]) -> bytes:
    """A control character as text; anything else as it is."""
    if found.lastindex:
        return found.group()
    return b"\\x%02x" % found.group()[-1]


def print_line(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(escape(text) + "\n")


def print_note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(escape(text) + "\n")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    import json

    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns, padded."""
    lines = [list(head), *[[escape(str(cell)) for cell in row] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def print_rows(text: str) -> Callable[[list[dict[str, Any]]], None]:
    """A function that prints a line for each record, in docker's ``--format``. Raises ``UsageError``."""
    from holdfast.cli.templates import table as as_table
    from holdfast.cli.templates import template

    if (form := as_table(text)) is not None:
        head, line = form
        return lambda records: table(head, (line(record).split("\t") for record in records))
    row = template(text)

    def rows(records: list[dict[str, Any]]) -> None:
        for record in records:
            print_line(row(record))

    return rows


def report(error: dict[str, Any], *, as_json: bool, program: str = "holdfast") -> None:
    """Print an error, given as a map, to standard error: its message, then its hint."""
    if as_json:
        import json

        print_note(json.dumps({"error": error}, default=str))
        return
    print_note(f"{program}: {error['message']}")
    if error["hint"]:
        print_note(f"  {error['hint']}")


def pairs(words: Sequence[str], what: str, example: str = "RUN=7") -> dict[str, str]:
    """``NAME=VALUE`` words as a map. Raises ``UsageError``."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"{what} must be written NAME=VALUE, not {word!r}", hint=f"as in {what} {example}")
        found[name] = value
    return found


def variables(arguments: Arguments) -> dict[str, str]:
    """The variables of ``--env-file`` and ``--env``.

    A NAME alone gets its value from this environment, as in docker. Raises ``UsageError``, ``OSError``.
    """
    found = dict[str, str]()
    for file in arguments.env_file:
        try:
            with open(file, encoding="utf-8-sig") as lines:  # docker ignores indentation and a byte order mark in such a file
                words = [word for line in lines if (word := line.lstrip().rstrip("\n")) and not word.startswith("#")]
        except UnicodeDecodeError:
            raise UsageError(
                f"{file} is not a file of variables: it is not text in UTF-8", hint="write one NAME=VALUE on each line"
            ) from None
        found |= _assigned(words, f"a line of {file}")
    return found | _assigned(arguments.env, "--env")


def _assigned(words: Sequence[str], what: str) -> dict[str, str]:
    """``NAME=VALUE`` words as a map; a NAME alone gets its value from this environment. Raises ``UsageError``."""
    for word in words:
        if word and "=" not in word and word not in os.environ:
            raise UsageError(f"{what} names the variable {word!r}, which is not set here", hint=f"write {word}=VALUE")
    return pairs([word if "=" in word or not word else f"{word}={os.environ[word]}" for word in words], what)


def age(since_s: float, now_s: float) -> str:
    """A time span in its largest unit."""
    span = max(now_s - since_s, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if span >= size:
            return f"{int(span // size)}{unit}"
    return f"{int(span)}s"


def finish(result: CommandResult, ended_by: Sequence[KeyboardInterrupt] = ()) -> int:
    """The exit status of this program. Prints to standard error why the command was ended; ``ended_by``: signals to this program."""
    if result.cause is not None and result.cause.reason == "cancelled" and ended_by:
        import signal

        number = getattr(ended_by[0], "number", None)
        what = "Ctrl-C a second time" if number is None else signal.Signals(number).name
        print_note(f"holdfast: received {what} and ended the command with all processes that it had started")
    elif result.cause is not None:
        print_note(f"holdfast: {result.cause.message or result.cause.reason}")
    return result.exit_code
