"""The state of a POSIX shell (dash, busybox): the commands that print it, how that text is read, and the text that restores it.

Such a shell cannot print its functions, so they are always lost. An error ends the loading of a state; ``shell`` then drops the first entry
that is missing and loads again. Called by ``files`` and by ``driver``.
"""

from __future__ import annotations

import re

from .bash import quote
from .entries import Splitter
from .saved import SavedState
from .sections import Section

_VARIABLES = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=|export |readonly ")
_ALIASES = re.compile(rb"(?:alias )?[^ \t\n='\"]+=")
_OTHERS = re.compile(rb"trap -- |set -o |[0-7]{3,4}\n")
_NAME = re.compile(rb"(?:(export|readonly) (?:-- )?)?([A-Za-z_][A-Za-z0-9_]*)(?:=|\Z)")
_OWN = frozenset(b"_ PPID OPTIND LINENO".split())
_NEVER = frozenset(b"interactive stdin monitor noexec vi emacs nolog debug notify".split())
FUNCTIONS = "functions"
"""Stands for all functions."""


def print_state(mark_aliases: bytes, mark_others: bytes) -> bytes:
    """Commands that print the state. The marks print the lines between its parts."""
    return b"\\pwd; \\set; \\export -p; \\readonly -p; %s\\alias; %s\\trap; \\set +o; \\umask; " % (mark_aliases, mark_others)


def read(dump: Section, token: bytes) -> SavedState:
    """The state in the text that the commands of ``print_state`` printed. ``token`` marks what the agent itself has set."""
    state = SavedState("sh", lost=[FUNCTIONS])
    marks = dump.mark(token, b"alias"), dump.mark(token, b"others")
    aliases, others = (dump.find(mark) for mark in marks)
    if not 0 <= aliases < others:
        state.lost.append("variables, aliases and options")
        return state
    start = dump.part(0, aliases).find(b"=")
    head = dump.part(0, max(start, 0)).read()
    line_end = head.rfind(b"\n")
    state.directory = head[:line_end] if head[:1] == b"/" and line_end >= 0 else b""
    for text, is_whole in Splitter(_VARIABLES).divide(dump.part(line_end + 1, aliases).blocks()):
        match = _NAME.match(text)
        if match is None or match[2] in _OWN:
            continue
        what = {b"": "variable", b"export": "exported variable", b"readonly": "read-only variable"}[match[1] or b""]
        state.entries[what, match[2]] = text if what == "variable" else match[1] + b" " + match[2]
        if not is_whole and what == "variable":
            state.drop((what, match[2]))
    for text, _ in Splitter(_ALIASES).divide(dump.part(aliases + len(marks[0]), others).blocks()):
        text = text.removeprefix(b"alias ")
        state.entries["alias", text.partition(b"=")[0]] = b"alias " + text
    for text, _ in Splitter(_OTHERS).divide(dump.part(others + len(marks[1]), len(dump)).blocks()):
        if text.startswith(b"trap "):
            name = text.rpartition(b" ")[2]
            if token in text:
                state.saves_at_exit = True
            else:
                state.entries["trap", name] = text
        elif text.startswith(b"set "):
            if (option := text.rpartition(b" ")[2]) not in _NEVER:
                state.entries["option", option] = text
        else:
            state.entries["umask", b""] = b"umask " + text
    return state


def restore(state: SavedState, exit_trap: bytes) -> bytes:
    """The text that restores ``state`` in a new shell."""
    entries = state.entries
    lines = [text for (what, name), text in entries.items() if what == "variable" and name not in (b"PWD", b"OLDPWD")]
    directory = [entries["variable", name] for name in (b"PWD", b"OLDPWD") if ("variable", name) in entries]
    if state.directory:
        # not an ``if``, which dash would read to its end before it changes the directory
        lines.insert(0, b"cd -- %s && {" % quote(state.directory) + b"\n".join([b" :", *directory]) + b"\n}")
    else:
        lines += [*directory, b'cd -- "$PWD"']
    for wanted in ("exported variable", "alias", "umask", "trap"):
        lines += [text for (what, _), text in entries.items() if what == wanted]
    if state.saves_at_exit:
        lines.append(exit_trap.rstrip(b"\n"))
    lines += [text for (what, _), text in entries.items() if what == "read-only variable"]
    options = sorted((name == b"errexit", text) for (what, name), text in entries.items() if what == "option")
    return b"\n".join([*lines, *(text for _, text in options)]) + b"\n"
