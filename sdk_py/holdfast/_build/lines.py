"""Reading a Dockerfile into instructions: directives, comments, continued lines and heredocs.

Owns where an instruction begins and ends; knows the names of instructions only to know which may have heredocs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast._build.errors import wrong

MOST_BYTES = 4 * 1024 * 1024
MOST_INSTRUCTIONS = 10_000
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*")
_KNOWN_DIRECTIVES = ("syntax", "escape", "check")
_HEREDOC = re.compile(r"(?<!\S)(\d*)<<(-?)(?:([\"'])([^\s<>\"']+)\3|([^\s<>\"'|&;()]+))")
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A document behind an instruction. ``expands``: its end was written without quotes. ``chomped``: ``<<-``, without leading tabs."""

    name: str
    text: str
    expands: bool
    chomped: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction: its name in capitals, and the words behind it on one line."""

    number: int
    name: str
    words: str
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(slots=True)
class File:
    """A whole Dockerfile. ``escape`` is the character that continues lines."""

    escape: str = "\\"
    lines: list[Line] = field(default_factory=list)
    directives: dict[str, str] = field(default_factory=dict)


def read(data: bytes) -> File:
    """The instructions of a Dockerfile. Raises ``DockerfileError``."""
    if len(data) > MOST_BYTES:
        raise wrong(1, f"the file is larger than {MOST_BYTES} bytes")
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as why:
        raise wrong(data.count(b"\n", 0, why.start) + 1, "the file is not UTF-8") from None
    if "\0" in text:
        raise wrong(text[: text.index("\0")].count("\n") + 1, "the file has a NUL character")
    rows = [row.removesuffix("\r") for row in text.split("\n")]
    file = File()
    at = _directives(rows, file)
    continued = re.compile(rf"{re.escape(file.escape)}[ \t]*$")
    while at < len(rows):
        row = rows[at].lstrip()
        if not row or row.startswith("#"):
            at += 1
            continue
        begin, parts = at, list[str]()
        while True:
            part = rows[at].lstrip() if not parts else rows[at]
            at += 1
            if parts and (not part.strip() or part.lstrip().startswith("#")):
                if at >= len(rows):
                    break
                continue  # comments and empty lines inside of an instruction are left out
            if not continued.search(part) or (file.escape == "`" and part.rstrip().endswith("``")):
                parts.append(part)
                break
            parts.append(continued.sub("", part))
            if at >= len(rows):
                break
        name, _, words = _split("".join(parts))
        heredocs, at = _heredocs(name, words, rows, at, begin + 1)
        file.lines.append(Line(begin + 1, name, words, heredocs))
        if len(file.lines) > MOST_INSTRUCTIONS:
            raise wrong(begin + 1, f"the file has more than {MOST_INSTRUCTIONS} instructions")
    if not file.lines:
        raise wrong(1, "the file has no instructions", "begin with FROM IMAGE")
    return file


def _directives(rows: list[str], file: File) -> int:
    """Read the directives at the top; returns the number of rows that they take."""
    for at, row in enumerate(rows):
        found = _DIRECTIVE.fullmatch(row.strip())
        name = found[1].lower() if found else ""
        if found is None or name not in _KNOWN_DIRECTIVES:
            return at
        if name in file.directives:
            raise wrong(at + 1, f"the directive {name} occurs twice")
        file.directives[name] = found[2]
        if name == "escape":
            if found[2] not in ("\\", "`"):
                raise wrong(at + 1, f"escape must be \\ or `, not {found[2]!r:.20}")
            file.escape = found[2]
    return len(rows)


def _split(text: str) -> tuple[str, str, str]:
    name, gap, words = text.strip().partition(" ")
    if "\t" in name:
        name, gap, rest = name.partition("\t")
        words = f"{rest} {words}" if words else rest
    return name.upper(), gap, words.strip()


def _heredocs(name: str, words: str, rows: list[str], at: int, line: int) -> tuple[tuple[Heredoc, ...], int]:
    inner = words.split(None, 1)[1] if name == "ONBUILD" and " " in words else words
    if (words.split(None, 1)[0].upper() if name == "ONBUILD" and words else name) not in _WITH_HEREDOCS:
        return (), at
    found: list[Heredoc] = []
    for match in _HEREDOC.finditer(_without_quoted(inner) if name == "RUN" else inner):
        end, chomped = match[4] or match[5], bool(match[2])
        body: list[str] = []
        while True:
            if at >= len(rows):
                raise wrong(line, f"the heredoc {end} has no end", f"write {end} alone in a line after it")
            row = rows[at]
            at += 1
            if (row.lstrip("\t") if chomped else row) == end:
                break
            body.append((row.lstrip("\t") if chomped else row) + "\n")
        found.append(Heredoc(end, "".join(body), match[3] is None, chomped))
    return tuple(found), at


def _without_quoted(words: str) -> str:
    """The words of a shell command without what stands in quotes, where ``<<`` begins no heredoc."""
    kept: list[str] = []
    quote, at = "", 0
    while at < len(words):
        c = words[at]
        if quote:
            if c == "\\" and quote == '"':
                at += 1
            elif c == quote:
                quote = ""
            at += 1
            continue
        if c == "\\":
            kept.append(words[at : at + 2])
            at += 2
            continue
        if c in "'\"" and not re.search(r"<<-?$", "".join(kept)):
            quote = c
        elif c in "'\"":
            end = words.find(c, at + 1)
            if end > 0:
                kept.append(words[at : end + 1])
                at = end + 1
                continue
        if not quote:
            kept.append(c)
        at += 1
    return "".join(kept)
