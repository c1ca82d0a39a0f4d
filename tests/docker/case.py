"""What a case is: commands, how they are started, and which part of their output is compared.

Owns the `Case` record and the functions that normalize an output for the comparison. Runs nothing. The modules of `cases/` make these,
`compare.py` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Step = str | tuple[str, ...]
Normalize = Callable[[str], str]

MAIN_IMAGE = "main"
DEADLINE_S = 60.0


def lines(text: str) -> str:
    """The output without trailing blanks: the default."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def nothing(text: str) -> str:
    """Only the exit code counts."""
    return ""


def sorted_lines(text: str) -> str:
    return "\n".join(sorted(lines(text).splitlines()))


def last_line(text: str) -> str:
    return lines(text).rpartition("\n")[2]


def without(pattern: str, replacement: str = "…") -> Normalize:
    """The output with every match replaced: for addresses, times and names that differ between any two containers."""
    compiled = re.compile(pattern)
    return lambda text: compiled.sub(replacement, lines(text))


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. Each of `steps` is what `docker exec` would receive: text for `sh -c`, or a list of arguments.

    `entrypoint`, `network` and `ulimits` are requested when the container is created: it runs the image's entrypoint and command,
    reaches the internet, has these limits. `refused`: the reference must refuse the last step (an exit code other than 0); in every
    other case it must end this step with `exits`. If it does not, the case fails, because the comparison would prove nothing.
    """

    name: str
    steps: tuple[Step, ...]
    user: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    input: bytes | None = None
    terminal: bool = False
    image: str = MAIN_IMAGE
    entrypoint: bool = False
    network: bool = False
    ulimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    refused: bool = False
    exits: int = 0
    normalize: Normalize = lines
    deadline_s: float = DEADLINE_S


def case(name: str, *steps: Step, **options: object) -> Case:
    """A case of one or several steps; the options are `Case`'s fields."""
    return Case(name, steps, **options)  # type: ignore[arg-type]
