"""Reads a Procfile: one `name: command` a line, in starting order.

Owns the format and its errors; knows nothing of processes. Used by `__main__` and by tests that bring their own file.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast_server.errors import UpError

_PYTHON = re.compile(r"^python(?=\s)")
_LINE = re.compile(r"^([A-Za-z][A-Za-z0-9_-]*)\s*:\s*(\S.*)$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One process: its name in the output and its shell command, in which a leading ``python`` has become this interpreter.

    A system's own Python often has no such name.
    """

    name: str
    command: str


def read_procfile(path: Path) -> list[Entry]:
    """Entries in file order. Raises UpError for a file that cannot be read, a malformed line or a name used twice."""
    try:
        text = path.read_text()
    except OSError as error:
        hint = "give the path of a Procfile, or leave out --procfile"
        raise UpError(f"cannot read {path}", hint=hint, cause=error) from error
    except UnicodeDecodeError as error:
        raise UpError(f"{path} is not a Procfile: it is not text", hint="give the path of a Procfile, or leave out --procfile") from error
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise UpError(f"{path}:{number}: not a `name: command` line", hint="correct the line or comment it out with #")
        name, command = match.groups()
        if name in entries:
            raise UpError(f"{path}:{number}: {name} is defined twice", hint="give each process its own name")
        entries[name] = Entry(name, _PYTHON.sub(lambda _: shlex.quote(sys.executable), command))
    if not entries:
        raise UpError(f"{path} names no process", hint="add at least one `name: command` line")
    return list(entries.values())
