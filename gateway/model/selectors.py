"""Selectors of labels: equality and set forms, as Kubernetes has.

Owns their grammar. One text is one requirement; what is selected meets all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from holdfast_wire.errors import HoldfastError

Operator = Literal["in", "notin", "exists", "absent"]

_MOST: Final = 64
"""Requirements of one selector."""
_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be."""

    name: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.name)
        if self.operator == "in":
            return value in self.values
        if self.operator == "notin":  # also true without the label, as in Kubernetes
            return value not in self.values
        return (value is not None) == (self.operator == "exists")


Selector = Sequence[Requirement]


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    return all(one.holds(labels) for one in selector)


def read_selector(texts: Sequence[str]) -> list[Requirement]:
    """The requirements in ``name=value``, ``name==value``, ``name!=value``, ``name in (a,b)``, ``name notin (a,b)``, ``name``, ``!name``.

    Names are not checked for their form. Raises ``invalid_argument``.
    """
    if len(texts) > _MOST:
        raise HoldfastError("invalid_argument", f"a selector has at most {_MOST} requirements")
    return [_read(text) for text in texts]


def _read(text: str) -> Requirement:
    if len(text) > _CHARACTERS or "\0" in text:
        raise _wrong(text)
    name, equals, value = text.partition("=")
    if equals and not any(mark in name for mark in "( "):
        if name.endswith("!"):
            return Requirement(_name(name[:-1]), "notin", frozenset((value,)))
        return Requirement(_name(name), "in", frozenset((value.removeprefix("="),)))
    head, _, rest = text.partition("(")
    words = head.split()
    if rest and len(words) == 2 and words[1] in ("in", "notin") and rest.rstrip().endswith(")"):
        values = [one.strip() for one in rest.rstrip()[:-1].split(",")]
        if any("(" in one or ")" in one for one in values):
            raise _wrong(text)
        return Requirement(_name(words[0]), "in" if words[1] == "in" else "notin", frozenset(values))
    if len(words) == 1 and not rest and "(" not in text:
        name = words[0]
        return Requirement(_name(name.removeprefix("!")), "absent" if name.startswith("!") else "exists")
    raise _wrong(text)


def _name(name: str) -> str:
    name = name.strip()
    if not name or any(character in "!=(), \t\0" for character in name):
        raise _wrong(name)
    return name


def _wrong(text: str) -> HoldfastError:
    hint = "write name=value, name!=value, 'name in (a,b)', 'name notin (a,b)', name (it has the label), or !name"
    return HoldfastError("invalid_argument", f"label {text[:100]!r} is no requirement of a label", hint=hint)
