"""Parsing of command lines: options, commands and their values.

Owns the parsing and its ``UsageError``. ``commands`` owns the list of commands. No library is used, because importing one takes a tenth of
the start of a short command, and none has docker's rule that the words after the sandbox or image belong to the command that runs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from holdfast_wire.fast_dataclass import dataclass

Arguments = SimpleNamespace
"""The parsed command line: an attribute for each option and position; ``argv`` (the words of the command in the sandbox, or None);
``entry`` and ``command``; and ``not_values``: a hint for each word that follows an option with an optional value without being one of its
values."""


_MOST = 999_999_999


class UsageError(Exception):
    """The command line is wrong. ``usage`` is the correct form; by default the usage of the typed command is shown."""

    def __init__(self, message: str, hint: str = "", usage: str = "", program: str = "holdfast") -> None:
        super().__init__(message)
        self.hint = hint
        self.usage = usage
        self.program = program


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def number(text: str) -> float:
    """A number of seconds, or another quantity of at least 0."""
    value = float(text)
    if not 0 <= value <= _MOST:
        raise ValueError
    return value


def duration(text: str) -> float:
    """A time in seconds; ``m``, ``h`` and ``d`` after it stand for minutes, hours and days."""
    unit = _UNITS_S.get(text[-1:])
    return number(text) if unit is None else number(text[:-1]) * unit


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    ``names`` are all its names, as in ``"-e --env"``. With a ``metavar`` it takes a value, which ``read`` converts (``ValueError`` if it is
    not a number). ``many``: the option may be repeated. ``bare``: the value if none is given; then a value must be written ``--name=VALUE``
    or be one of ``values``. ``closes``: after this option, all words after the first position belong to the command in the sandbox.
    """

    names: str
    help: str
    metavar: str = ""
    read: Callable[[str], Any] = str
    default: Any = None
    many: bool = False
    bare: str = ""
    values: tuple[str, ...] = ()
    closes: bool = False

    @property
    def dest(self) -> str:
        """The attribute that holds the option's value."""
        names = self.names.split()
        return next((name for name in names if name.startswith("--")), names[0]).lstrip("-").replace("-", "_")


HELP = Option("-h --help", "show this and exit")
JSON = Option("--json", "print JSON")


class Command:
    """One command.

    ``places`` are its positions (``NAME``, ``NAME?``, ``NAME...``, ``NAME*``). With ``inner``, the words after the first position belong to
    a command in the sandbox, which begins with the first word that is not an option.
    """

    def __init__(self, name: str, help_: str, entry: str, places: str = "", *options: Option, inner: str = "", more: str = "") -> None:
        self.name = name
        self.help = help_
        self.entry = entry
        self.places = places.split()
        self.options = (*options, JSON, HELP)
        self.inner = inner
        self.more = more
        self.program = f"holdfast {name}"
        self._named = {name: option for option in self.options for name in option.names.split()}

    @property
    def positions(self) -> str:
        """The positions, as the usage shows them."""
        places = [f"[{place.rstrip('?*')}{'...' * place.endswith('*')}]" if place[-1] in "?*" else place for place in self.places]
        return " ".join([*places, *([self.inner] if self.inner else [])])

    @property
    def usage(self) -> str:
        return f"usage: {self.program} [OPTIONS] {self.positions}".rstrip()

    def wrong(self, message: str, hint: str = "") -> UsageError:
        return UsageError(message, hint, self.usage, self.program)

    def read(self, words: Sequence[str]) -> Arguments:
        """The values of a command line. Raises ``UsageError``."""
        found = Arguments(entry=self.entry, argv=None, command=self, not_values={})
        for option in self.options:
            setattr(found, option.dest, [] if option.many else option.default if option.metavar else False)
        bare: list[str] = []
        at, closed = 0, False
        while at < len(words):
            word = words[at]
            is_option = word.startswith("-") and word != "-"
            if word == "--" or (self.inner and bare and (closed or not is_option)):
                rest = list(words[at + (word == "--") :])
                found.argv, bare = (rest, bare) if self.inner else (None, bare + rest)
                break
            at += 1
            if is_option:
                at += self._take(found, word, words[at:])
                closed = closed or any(option.closes and getattr(found, option.dest) is not None for option in self.options)
            else:
                bare.append(word)
        if not found.help:
            self._place(found, bare)
        return found

    def _take(self, found: Arguments, word: str, following: Sequence[str]) -> int:
        """Parse one word with options. Returns how many of the following words were values."""
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            return self._set(found, self._known(name), name, value if separator else None, following)
        for at, letter in enumerate(word[1:], 1):
            name, rest = f"-{letter}", word[at + 1 :]
            option = self._known(name, word)
            if option.metavar:
                return self._set(found, option, name, rest.removeprefix("=") or None, () if rest else following)
            self._set(found, option, name, None, ())
        return 0

    def _set(self, found: Arguments, option: Option, name: str, value: str | None, following: Sequence[str]) -> int:
        """Set the value of an option; without ``value`` the next word may be the value. Returns how many words were used."""
        if not option.metavar:
            if value is not None:
                raise self.wrong(f"{name} takes no value")
            setattr(found, option.dest, True)
            return 0
        taken = value is None and bool(following) and (not option.bare or following[0] in option.values)
        if taken:
            value = following[0]
        elif value is None and option.bare:
            value = option.bare
            if following:
                alone = f"{name} takes one of {', '.join(option.values)}; without a value it means {option.bare}"
                found.not_values[following[0]] = f"{alone}: {following[0]!r} was read as the next argument"
        if value is None:
            raise self.wrong(f"{name} needs a value: {name} {option.metavar}")
        if option.values and value not in option.values:
            raise self.wrong(f"{name} must be one of {', '.join(option.values)}, not {value!r}")
        try:
            read = option.read(value)
        except ValueError:
            raise self.wrong(f"{name} {option.metavar} must be a number from 0 to {_MOST}, not {value!r}") from None
        if option.many:
            getattr(found, option.dest).append(read)
        else:
            setattr(found, option.dest, read)
        return int(taken)

    def _known(self, name: str, word: str = "") -> Option:
        if name in self._named:
            return self._named[name]
        from holdfast.cli.suggestions import suggest_option

        shown = f"{name} in {word}" if word and word != name else name
        raise self.wrong(f"there is no option {shown}{suggest_option(name, self.name, list(self._named))}")

    def _place(self, found: Arguments, bare: list[str]) -> None:
        left = list(bare)
        for at, place in enumerate(self.places):
            name = place.rstrip(".?*").lower()
            needed = len(self.places) - at - 1
            if place.endswith(("...", "*")):
                taken = left[: len(left) - needed]
                if not taken and place.endswith("..."):
                    raise self.wrong(f"{place.rstrip('.')} is missing")
                setattr(found, name, taken)
                left = left[len(taken) :]
            elif left:
                setattr(found, name, left.pop(0))
            elif place.endswith("?"):
                setattr(found, name, None)
            else:
                raise self.wrong(f"{place} is missing")
        if left:
            raise self.wrong(f"{left[0]!r} is an unexpected argument", next(iter(found.not_values.values()), ""))

    def help_text(self) -> str:
        """The text of ``--help``."""
        more = f"\n{self.more.strip()}\n" if self.more else ""
        return f"{self.usage}\n\n{self.help[0].upper()}{self.help[1:]}.\n{more}\noptions:\n{columns(self.options)}"


class Delegated(Command):
    """A command whose arguments are parsed by another parser, which also prints its help."""

    def read(self, words: Sequence[str]) -> Arguments:
        return Arguments(entry=self.entry, argv=list(words), command=self, not_values={}, json=False, help=False)


def columns(rows: Sequence[Option | tuple[str, str]]) -> str:
    """Two columns; an entry that is too wide for the first column has its own line."""
    width, text = 28, ""
    for row in rows:
        if isinstance(row, Option):
            names = row.names.replace(" ", ", ")
            row = (f"{names} {row.metavar}{' ...' * row.many}".rstrip(), row.help)
        text += f"  {row[0]:<{width}}{row[1]}\n" if len(row[0]) < width else f"  {row[0]}\n  {'':{width}}{row[1]}\n"
    return text
