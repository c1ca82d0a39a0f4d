"""The twin of a repair task: a project with one wrong operator, as a state machine without files or processes.

Owns tasks, what each command answers, and whether the bug is fixed. Who chooses the commands is ``teacher`` or a trained policy. A
``World`` fixes which operator is right where another is seen: that is the knowledge a policy can acquire, everything else (where the
test fails, which line it is) differs from task to task and has to be read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import language
from .language import NUMBERS, OPERATORS


@dataclass(frozen=True, slots=True)
class World:
    """``right[o]`` is the operator that belongs where o is seen; ``candidates[o]`` are the fixes one might try, with the right one."""

    right: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    numbers: int = NUMBERS
    """Functions and lines that a project has."""

    @classmethod
    def make(cls, seed: int = 0, *, operators: int = len(OPERATORS), numbers: int = NUMBERS, choices: int = 4) -> World:
        """A permutation of the first ``operators`` operators without fixed points, and ``choices`` candidates for each."""
        draw = random.Random(f"world-{seed}")  # noqa: S311  a seeded choice, no secret
        order = list(range(operators))
        draw.shuffle(order)
        right = [0] * len(order)
        for index, each in enumerate(order):
            right[each] = order[(index + 1) % len(order)]
        candidates = []
        for seen, fix in enumerate(right):
            others = draw.sample([each for each in range(len(order)) if each not in (seen, fix)], choices - 1)
            candidates.append(tuple(sorted([fix, *others])))
        return cls(tuple(right), tuple(candidates), numbers)


@dataclass(frozen=True, slots=True)
class Bug:
    """A task: the test fails in function ``symbol``, whose line ``line`` has the operator ``seen``. ``seed`` makes the other lines."""

    symbol: int
    line: int
    seen: int
    seed: int

    @property
    def task_id(self) -> str:
        return f"twin-{self.seed}-{self.symbol:02}-{self.line:02}-{self.seen:02}"


def bugs(world: World, seed: int, operators: Sequence[int] | None = None) -> Iterator[Bug]:
    """Tasks without end; the same seed gives the same ones. ``operators`` restricts which are seen."""
    draw = random.Random(f"bugs-{seed}")  # noqa: S311
    chosen = range(len(world.right)) if operators is None else operators
    while True:
        yield Bug(draw.randrange(world.numbers), draw.randrange(world.numbers), draw.choice(chosen), draw.randrange(2**31))


@dataclass(slots=True)
class Twin:
    """One episode. ``step`` takes the words of an action and gives the words of the answer, none once the episode has ended."""

    bug: Bug
    world: World
    most_steps: int = 10
    steps: int = 0
    submitted: bool = False
    localised: bool = False
    """An edit reached the line with the bug."""
    malformed: int = 0
    _lines: dict[int, int] = field(default_factory=dict)

    @property
    def solved(self) -> bool:
        """The line has the right operator, and no other line was changed. Graded at the end, submitted or not (B1)."""
        return self._lines == {self.bug.line: self.world.right[self.bug.seen]}

    @property
    def ended(self) -> bool:
        return self.submitted or self.steps >= self.most_steps

    @property
    def truncated(self) -> bool:
        """The budget of steps ended it."""
        return self.ended and not self.submitted

    def step(self, action: Sequence[str]) -> tuple[str, ...]:
        if self.ended:
            raise ValueError("the episode has ended")
        self.steps += 1
        answer = self._answer(tuple(action))
        if answer is None:
            self.malformed += 1
            answer = ("ERR",)
        return () if self.ended else answer

    def _answer(self, action: tuple[str, ...]) -> tuple[str, ...] | None:
        match action:
            case ("s",):
                self.submitted = True
                return ()
            case ("t",):
                return ("PASS",) if self.solved else ("FAIL", language.number(self.bug.symbol))
            case ("l", word) if word.isdigit():
                return ("OK",)
            case ("g", word) if word.isdigit():
                return ("AT", language.number(self._line_of(int(word))))
            case ("v", word) if word.isdigit():
                return ("SEE", language.operator(OPERATORS[self._operator_at(int(word))]))
            case ("e", fix, word) if word.isdigit() and (name := language.operator_name(fix)):
                self._edit(int(word), OPERATORS.index(name))
                return ("OK",)
        return None

    def _edit(self, line: int, fix: int) -> None:
        self.localised |= line == self.bug.line
        self._lines.pop(line, None)
        if fix != self._operator_at(line):
            self._lines[line] = fix

    def _line_of(self, symbol: int) -> int:
        return self.bug.line if symbol == self.bug.symbol else random.Random(f"{self.bug.seed}-line-{symbol}").randrange(self.world.numbers)  # noqa: S311

    def _operator_at(self, line: int) -> int:
        if line in self._lines:
            return self._lines[line]
        if line == self.bug.line:
            return self.bug.seen
        return random.Random(f"{self.bug.seed}-operator-{line}").randrange(len(self.world.right))  # noqa: S311
