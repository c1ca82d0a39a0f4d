"""Patterns of paths: those of COPY and ADD (Go's filepath.Match), and those of .dockerignore."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_RECURSIVE = "**"
MOST_PATTERNS = 10_000


def has_wildcard(text: str) -> bool:
    """Whether a source of COPY is a pattern."""
    return any(c in text for c in "*?[")


def part_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of one component of a path. Raises ``ValueError`` for a pattern that Go refuses."""
    return re.compile(_part(pattern), re.DOTALL)


def _part(pattern: str) -> str:
    found: list[str] = []
    at = 0
    while at < len(pattern):
        c = pattern[at]
        at += 1
        if c == "*":
            found.append("[^/]*")
        elif c == "?":
            found.append("[^/]")
        elif c == "[":
            end = pattern.find("]", at + (2 if pattern[at : at + 1] == "^" else 1))
            if end < 0:
                raise ValueError(f"{pattern!r:.100} has a [ without ]")
            inner = pattern[at:end].replace("\\", "\\\\").replace("[", "\\[")
            found.append(f"[{inner}]")
            at = end + 1
        elif c == "\\":
            if at == len(pattern):
                raise ValueError(f"{pattern!r:.100} ends with a \\")
            found.append(re.escape(pattern[at]))
            at += 1
        else:
            found.append(re.escape(c))
    text = "".join(found)
    try:
        re.compile(text)
    except re.error:
        raise ValueError(f"{pattern!r:.100} is no pattern") from None
    return text


@dataclass(frozen=True, slots=True)
class _Rule:
    match: re.Pattern[str]
    again: bool
    """An exception, written with ``!``: what matches is in the context again."""


class Ignored:
    """What a .dockerignore leaves out. The last rule that matches a path or one of its directories decides."""

    def __init__(self, text: str = "") -> None:
        self.rules = [rule for row in text.removeprefix("\ufeff").splitlines()[:MOST_PATTERNS] if (rule := _rule(row)) is not None]
        self.has_exceptions = any(rule.again for rule in self.rules)

    def __call__(self, path: str) -> bool:
        """Whether the path, relative to the context, is left out."""
        left_out = False
        parts = path.split("/")
        paths = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        for rule in self.rules:
            if rule.again is left_out and any(rule.match.fullmatch(one) for one in paths):
                left_out = not rule.again
        return left_out


def _rule(row: str) -> _Rule | None:
    row = row.strip()
    if not row or row.startswith("#"):
        return None
    again = row.startswith("!")
    path = posixpath.normpath(row.removeprefix("!").strip() or ".").lstrip("/")
    if path in ("", "."):
        return None
    found: list[str] = []
    parts = path.split("/")
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == _RECURSIVE:
            found.append(".*" if last else "(?:.*/)?")
        else:
            # ** inside of a component matches across directories, as in docker
            pieces = part.split(_RECURSIVE)
            found.append(".*".join(_part(piece) for piece in pieces) + ("" if last else "/"))
    return _Rule(re.compile("".join(found), re.DOTALL), again)
