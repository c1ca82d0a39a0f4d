"""The saved state of a shell, as entries that can be restored, compared and carried to another process or sandbox.

Owns the type and its serial form. ``bash`` and ``posix`` read it from what a shell printed and write the text that restores it. What was
lost is found by comparing the state before with the state that the restored shell prints itself, not from the success of each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast_wire.fast_dataclass import dataclass, field

Key = tuple[str, bytes]
"""What an entry is (``variable``, ``alias``, ``trap``, ``option``, ``umask``, ``exported function``) and its name."""

MOST_LOST = 100
"""Most names of lost entries in a result."""
_LONGEST = 120
EVERYTHING = "the whole state"
"""Stands for all entries, where a state could not be read or restored at all."""


@dataclass(slots=True)
class SavedState:
    """What a shell would need to go on in another process."""

    kind: str
    """``bash`` or ``sh``."""
    directory: bytes = b""
    """Its directory, empty if it could not be printed."""
    entries: dict[Key, bytes] = field(default_factory=dict)
    """In the order in which the shell printed them, as it printed them."""
    functions: dict[bytes, bytes] = field(default_factory=dict)
    """Their texts by name, in order."""
    saves_at_exit: bool = False
    """Whether the agent's own trap on EXIT is still set."""
    lost: list[str] = field(default_factory=list)
    """What is missing from this state already: entries that were too large, or that were dropped because they cannot be loaded."""

    def missing_from(self, other: SavedState) -> list[Key]:
        """The entries that ``other``, the state of the shell that was restored from this one, does not have or has differently."""
        missing: list[Key] = []
        if self.directory and self.directory != other.directory:
            missing.append(("directory", self.directory))
        for key, text in self.entries.items():
            restored = other.entries.get(key)
            if restored == text or key[1] in NOT_COMPARED:
                continue
            if missing and missing[0][0] == "directory" and key[1] in (b"PWD", b"OLDPWD"):
                continue
            if restored is None or sorted(restored) != sorted(text):  # the elements of an associative array have no order
                missing.append(key)
        return missing + [("function", name) for name in self.functions if name not in other.functions]

    def drop(self, key: Key) -> None:
        """Remove an entry that cannot be restored, and count it as lost."""
        self.lost.append(label(key))
        if key[0] == "function":
            self.functions.pop(key[1], None)
        elif key[0] == "directory":
            self.directory = b""
        else:
            self.entries.pop(key, None)

    def drop_code(self) -> bool:
        """Remove all traps, or if there are none all functions, one of which ends the shell. False if there is neither."""
        keys = [key for key in self.entries if key[0] == "trap"] or [("function", name) for name in self.functions]
        for key in keys:
            self.drop(key)
        return bool(keys)

    def to_map(self) -> dict[str, Any]:
        """Its serial form: maps, arrays, texts and bytes."""
        return {
            "kind": self.kind,
            "directory": self.directory,
            "entries": [[what, name, text] for (what, name), text in self.entries.items()],
            "functions": [[name, text] for name, text in self.functions.items()],
            "lost": self.lost,
        }

    @classmethod
    def from_map(cls, body: dict[str, Any]) -> SavedState:
        """From its serial form, which an agent wrote. The result saves its state at its exit. Raises ``ValueError``, ``KeyError`` or
        ``TypeError``."""
        entries = {(str(what), bytes(name)): bytes(text) for what, name, text in body["entries"]}
        functions = {bytes(name): bytes(text) for name, text in body["functions"]}
        kind = body["kind"]
        if kind not in ("bash", "sh"):
            raise ValueError(f"a shell of an unknown kind: {kind!r:.40}")
        return cls(kind, bytes(body["directory"]), entries, functions, True, [str(name) for name in body["lost"]])


NOT_COMPARED = frozenset(b"_ PPID SECONDS RANDOM COLUMNS LINES LINENO OPTIND BASH_REMATCH  HISTCMD SHLVL".split())
"""Names of variables that a shell itself changes."""


def label(key: Key) -> str:
    """An entry as it is named in a result."""
    what, name = key
    return f"{what} {name.decode('utf-8', 'replace')}"[:_LONGEST].rstrip()


def shown(lost: Iterable[str]) -> list[str]:
    """The names for a result: each once, and a bounded number of them."""
    names = list(dict.fromkeys(lost))
    more = len(names) - MOST_LOST
    return names if more <= 0 else [*names[:MOST_LOST], f"{more} more"]
