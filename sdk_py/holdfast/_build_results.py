"""What a build of an image reports while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Something that a build did."""

    kind: Literal["step", "cached", "output", "done"]
    """A step begins; its result was there already; bytes of its command; it has ended."""
    step: int = 0
    """The number of the step, from 1."""
    steps: int = 0
    """How many steps the build has."""
    line: int = 0
    """The line of the Dockerfile where it begins."""
    stage: str = ""
    """The name of its stage, or ``stage-N``."""
    text: str = ""
    """The instruction, or the output."""
    seconds: float = 0.0
    """Of ``done``: how long the step took."""

    def to_map(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


BuildEvent.__module__ = "holdfast"  # where it is imported from
