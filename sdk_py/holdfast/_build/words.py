"""Words of instructions: splitting, quotes, escapes, and variables as BuildKit expands them.

``$name``, ``${name}``, ``${name:-word}``, ``:+``, ``:?`` (each also without the colon), ``#``, ``##``, ``%``, ``%%``, ``/``, ``//``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from holdfast._build.errors import wrong

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#]")
_MOST_DEPTH = 50
_MOST_CHARACTERS = 4 * 1024 * 1024


def expand(text: str, values: Mapping[str, str], line: int, escape: str = "\\") -> str:
    """The text as one word: quotes removed, variables replaced; those that have no value are empty. Raises ``DockerfileError``."""
    return "".join(_Lexer(text, values, line, escape).words(split=False))


def expand_words(text: str, values: Mapping[str, str], line: int, escape: str = "\\") -> list[str]:
    """The text as words: spaces outside of quotes separate them, also those that come out of a variable."""
    return _Lexer(text, values, line, escape).words(split=True)


def expand_heredoc(text: str, values: Mapping[str, str], line: int, escape: str = "\\") -> str:
    """The text of a document: variables are replaced, quotes stay."""
    return _Lexer(text, values, line, escape, raw=True).all()


def split_raw(text: str, line: int, escape: str = "\\") -> list[str]:
    """The words of the text with their quotes: spaces outside of quotes separate them. Raises ``DockerfileError``."""
    found: list[str] = []
    word, quote, at, inside = "", "", 0, False
    while at < len(text):
        c = text[at]
        if c == escape and quote != "'" and at + 1 < len(text):
            word, at, inside = word + text[at : at + 2], at + 2, True
            continue
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c.isspace():
            if inside:
                found.append(word)
            word, inside, at = "", False, at + 1
            continue
        word, inside, at = word + c, True, at + 1
    if quote:
        raise wrong(line, f"a quote {quote} is not closed")
    return [*found, word] if inside else found


class _Lexer:
    def __init__(self, text: str, values: Mapping[str, str], line: int, escape: str, *, raw: bool = False, depth: int = 0) -> None:
        self._text, self._values, self._line, self._escape = text, values, line, escape
        self._raw = raw
        self._at = 0
        self._depth = depth
        if depth > _MOST_DEPTH:
            raise wrong(line, "variables are nested too deeply")

    def all(self) -> str:
        """The whole text as one."""
        return "".join(part for part, _ in self._parts())

    def words(self, *, split: bool) -> list[str]:
        if not split:
            return [self.all()]
        found: list[str] = []
        word, inside = "", False
        for part, quoted in self._parts():
            pieces = [part] if quoted else re.split(r"(\s+)", part)
            for piece in pieces:
                if not quoted and piece.isspace():
                    if inside:
                        found.append(word)
                    word, inside = "", False
                elif piece or quoted:
                    word, inside = word + piece, True
            if len(word) > _MOST_CHARACTERS:
                raise wrong(self._line, "a word is too long")
        return [*found, word] if inside else found

    def _parts(self) -> list[tuple[str, bool]]:
        """Pieces of text, and whether each stood in quotes."""
        found: list[tuple[str, bool]] = []
        while self._at < len(self._text):
            c = self._text[self._at]
            if c == "'" and not self._raw:
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    raise wrong(self._line, "a quote ' is not closed")
                found.append((self._text[self._at + 1 : end], True))
                self._at = end + 1
            elif c == '"' and not self._raw:
                found.append((self._double(), True))
            elif c == self._escape:
                after = self._text[self._at + 1 : self._at + 2]
                if self._raw and after not in ("$", self._escape):
                    found.append((c, False))
                    self._at += 1
                else:
                    found.append((after, True))
                    self._at += 2
            elif c == "$":
                found.append((self._variable(), False))
            else:
                found.append((c, False))
                self._at += 1
        return found

    def _double(self) -> str:
        self._at += 1
        parts: list[str] = []
        while self._at < len(self._text):
            c = self._text[self._at]
            if c == '"':
                self._at += 1
                return "".join(parts)
            if c == self._escape and self._text[self._at + 1 : self._at + 2] in ('"', "$", self._escape):
                parts.append(self._text[self._at + 1])
                self._at += 2
            elif c == "$":
                parts.append(self._variable())
            else:
                parts.append(c)
                self._at += 1
        raise wrong(self._line, 'a quote " is not closed')

    def _variable(self) -> str:
        self._at += 1
        if self._text[self._at : self._at + 1] != "{":
            name = _NAME.match(self._text, self._at)
            if name is None:
                return "$"
            self._at = name.end()
            return self._values.get(name[0], "")
        name = _NAME.match(self._text, self._at + 1)
        if name is None:
            raise wrong(self._line, f"${{{self._text[self._at + 1 : self._at + 11]}: the name of a variable is missing")
        begin = name.end()
        end = self._closing(begin)
        self._at = end + 1
        return self._modified(name[0], self._text[begin:end])

    def _closing(self, at: int) -> int:
        depth = 1
        while at < len(self._text):
            c = self._text[at]
            if c == self._escape:
                at += 2
                continue
            if self._text.startswith("${", at):
                depth, at = depth + 1, at + 2
                continue
            if c == "}":
                depth -= 1
                if not depth:
                    return at
            at += 1
        raise wrong(self._line, "${ is not closed by }")

    def _inner(self, text: str) -> str:
        return _Lexer(text, self._values, self._line, self._escape, depth=self._depth + 1).all()

    def _modified(self, name: str, modifier: str) -> str:
        value = self._values.get(name)
        if not modifier:
            return value or ""
        colon = modifier.startswith(":")
        kind, word = modifier[colon : colon + 1], modifier[colon + 1 :]
        is_set = value is not None and not (colon and value == "")
        match kind:
            case "-":
                return (value or "") if is_set else self._inner(word)
            case "+":
                return self._inner(word) if is_set else ""
            case "?":
                if not is_set:
                    raise wrong(self._line, f"{name}: {self._inner(word) or 'the variable is not set'}")
                return value or ""
        if colon or kind not in ("#", "%", "/"):
            raise wrong(self._line, f"${{{name}{modifier[:20]}}}: the modifier is not supported")
        twice = word.startswith(kind)
        word = word[1:] if twice else word
        if kind == "/":
            pattern, _, new = word.partition("/")
            return re.sub(shell_pattern(self._inner(pattern)), _constant(self._inner(new)), value or "", count=0 if twice else 1)
        return _stripped(value or "", self._inner(word), from_end=kind == "%", greedy=twice)


def _constant(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text


def _stripped(value: str, pattern: str, *, from_end: bool, greedy: bool) -> str:
    """The value without the shortest or longest match of the pattern at its beginning or end."""
    match = re.compile(shell_pattern(pattern), re.DOTALL)
    ends = range(len(value), -1, -1) if from_end else range(len(value) + 1)
    for at in reversed(ends) if greedy else ends:
        if match.fullmatch(value[at:] if from_end else value[:at]):
            return value[:at] if from_end else value[at:]
    return value


def shell_pattern(pattern: str) -> str:
    """The regular expression of a shell's pattern with ``*``, ``?`` and ``\\``."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"*": ".*", "?": "."}.get(c) or re.escape(c))
        at += 1
    return "".join(parts)
