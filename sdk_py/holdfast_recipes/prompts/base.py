"""A prompt: text with named places, a version, a digest. Owns the filling in of places; the texts are beside it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_PLACE = re.compile(r"\{\{([a-z_]+)\}\}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text`` has places ``{{name}}``. The version goes up with every change of wording."""

    name: str
    version: int
    text: str

    @property
    def places(self) -> frozenset[str]:
        return frozenset(_PLACE.findall(self.text))

    @property
    def sha256(self) -> str:
        """Of name, version and text: what a trajectory records."""
        return hashlib.sha256(f"{self.name}\n{self.version}\n{self.text}".encode()).hexdigest()

    def fill(self, **values: str) -> str:
        """The text with every place filled, each once: what a value contains is never read as a place. Raises ValueError unless the
        values are those that the places ask for."""
        if values.keys() != self.places:
            raise ValueError(f"prompt {self.name} has places {sorted(self.places)}, not {sorted(values)}")
        return _PLACE.sub(lambda match: values[match[1]], self.text)


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters of a text, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters]"


def capped(lines: list[str], most: int) -> str:
    """A list of at most ``most`` entries, and how many more there are; "none" for an empty one."""
    shown = [f"- {line}" for line in lines[:most]]
    more = [f"({len(lines) - most} more)"] if len(lines) > most else []
    return "\n".join(shown + more) or "none"
