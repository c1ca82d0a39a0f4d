"""The scripted teacher of the twin: a Markov policy with knobs, so that the value of each of its states is known exactly.

Owns the generation of teacher runs, and ``Teacher.value``: the probability that it solves this task from a state, by recursion over its
moves. Value estimators are measured against it (E5). The teacher is imperfect on purpose: it applies some fixes directly and tries out
the others, reads unrelated lines, and sometimes submits without a test.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from . import language
from .language import OPERATORS, Step
from .twin import Bug, Twin, World, bugs


class Phase(IntEnum):
    """The teacher's knowledge about the task, in the order in which it is gained."""

    START = 0
    FAILING = 1
    LOCATED = 2
    VIEWED = 3
    EDITED = 4
    PASSED = 5
    DONE = 6


class Move(Enum):
    TEST = "test"
    FIND = "find"
    VIEW = "view"
    RIGHT = "right edit"
    WRONG = "wrong edit"
    SUBMIT = "submit"
    WANDER = "wander"


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the teacher's next move depends on. ``untried`` counts wrong candidates that it has not tried."""

    steps_left: int
    known: bool
    untried: int
    phase: Phase = Phase.START
    right: bool = False

    def after(self, move: Move) -> State:
        spent = replace(self, steps_left=self.steps_left - 1)
        match move:
            case Move.WANDER:
                return spent
            case Move.TEST if self.phase is Phase.EDITED:
                return replace(spent, phase=Phase.PASSED if self.right else Phase.VIEWED)
            case Move.TEST | Move.FIND | Move.VIEW:
                return replace(spent, phase=Phase(self.phase + 1))
            case Move.RIGHT:
                return replace(spent, phase=Phase.EDITED, right=True)
            case Move.WRONG:
                return replace(spent, phase=Phase.EDITED, right=False, untried=self.untried if self.known else self.untried - 1)
        return replace(spent, phase=Phase.DONE)


_NEXT = {Phase.START: Move.TEST, Phase.FAILING: Move.FIND, Phase.LOCATED: Move.VIEW, Phase.PASSED: Move.SUBMIT}


@dataclass(frozen=True, slots=True)
class Episode:
    """A run of the teacher: its moves and the states before each of them, with the final one last ([L + 1])."""

    bug: Bug
    steps: tuple[Step, ...]
    moves: tuple[Move, ...]
    states: tuple[State, ...]
    solved: bool
    localised: bool


@dataclass(frozen=True)
class Teacher:
    """``known``: operators whose fix it applies directly. ``wander``: how often it reads another place. ``check``: how often it tests an
    edit before it submits. ``slip``: how often it gets a known fix wrong."""

    world: World
    known: Collection[int] = field(default_factory=lambda: frozenset(range(0, len(OPERATORS), 2)))
    wander: float = 0.3
    check: float = 0.8
    slip: float = 0.0
    most_steps: int = 10
    _values: dict[State, float] = field(default_factory=dict, repr=False, compare=False)

    def start(self, bug: Bug) -> State:
        known = bug.seen in self.known
        return State(self.most_steps, known, len(self.world.candidates[bug.seen]) - 1)

    def moves(self, state: State) -> list[tuple[float, Move]]:
        """Its moves in a state with their probabilities; none once the episode has ended."""
        if state.phase is Phase.DONE or not state.steps_left:
            return []
        if state.phase is Phase.PASSED:
            return [(1.0, Move.SUBMIT)]
        if state.phase is Phase.EDITED:
            own = [(self.check, Move.TEST), (1 - self.check, Move.SUBMIT)]
        elif state.phase is Phase.VIEWED:
            wrong = self.slip if state.known else state.untried / (state.untried + 1)
            own = [(1 - wrong, Move.RIGHT), (wrong, Move.WRONG)]
        else:
            own = [(1.0, _NEXT[state.phase])]
        return [(chance * (1 - self.wander), move) for chance, move in own if chance] + [(self.wander, Move.WANDER)] * (self.wander > 0)

    def value(self, state: State) -> float:
        """P(solved | state) for this task, exactly."""
        if state not in self._values:
            moves = self.moves(state)
            self._values[state] = sum(chance * self.value(state.after(move)) for chance, move in moves) if moves else float(state.right)
        return self._values[state]

    def draw(self, state: State, draw: random.Random) -> Move:
        moves = self.moves(state)
        return draw.choices([move for _, move in moves], [chance for chance, _ in moves])[0]

    def finish(self, state: State, draw: random.Random) -> bool:
        """Play on from a state, without the words: whether it ends solved. What a Monte Carlo estimate repeats."""
        while self.moves(state):
            state = state.after(self.draw(state, draw))
        return state.right

    def play(self, bug: Bug, seed: int) -> Episode:
        return self.play_on(Twin(bug, self.world, self.most_steps), self.start(bug), (), random.Random(f"teacher-{seed}"))  # noqa: S311

    def play_on(self, twin: Twin, state: State, tried: Collection[int], draw: random.Random) -> Episode:
        """Play a twin to its end from its state. ``tried`` are the wrong candidates that were edited before. The episode begins here."""
        bug = twin.bug
        wrong = [each for each in self.world.candidates[bug.seen] if each != self.world.right[bug.seen]]
        untried = [each for each in wrong if state.known or each not in tried]
        states, moves, steps = [state], [], []
        while not twin.ended:
            move = self.draw(state, draw)
            action = self._words(move, bug, untried, state, draw)
            steps.append(Step(action, twin.step(action)))
            moves.append(move)
            state = state.after(move)
            states.append(state)
        assert twin.solved == state.right, "the states of the teacher do not describe the twin"
        return Episode(bug, tuple(steps), tuple(moves), tuple(states), twin.solved, twin.localised)

    def _words(self, move: Move, bug: Bug, untried: list[int], state: State, draw: random.Random) -> tuple[str, ...]:
        line, symbol = language.number(bug.line), language.number(bug.symbol)
        match move:
            case Move.TEST:
                return ("t",)
            case Move.FIND:
                return ("g", symbol)
            case Move.VIEW:
                return ("v", line)
            case Move.RIGHT:
                return ("e", language.operator(OPERATORS[self.world.right[bug.seen]]), line)
            case Move.WRONG:
                choice = draw.choice(untried)
                if not state.known:
                    untried.remove(choice)
                return ("e", language.operator(OPERATORS[choice]), line)
            case Move.SUBMIT:
                return ("s",)
        return ("l", language.number(draw.randrange(self.world.numbers)))


def collect(
    teacher: Teacher, seed: int, *, resolved: int, unresolved: int, tasks: Iterable[Bug] | None = None
) -> tuple[list[Episode], list[Episode]]:
    """The first so many resolved and unresolved runs of an endless collection, one run for each task. ``tasks``: instead of the seed's."""
    wins: list[Episode] = []
    losses: list[Episode] = []
    for episode in runs(teacher, seed, tasks):
        if len(wins) >= resolved and len(losses) >= unresolved:
            break
        kind, wanted = (wins, resolved) if episode.solved else (losses, unresolved)
        if len(kind) < wanted:
            kind.append(episode)
    return wins, losses


def runs(teacher: Teacher, seed: int, tasks: Iterable[Bug] | None = None) -> Iterator[Episode]:
    """The teacher's runs, one for each task, without end unless ``tasks`` ends."""
    for index, bug in enumerate(bugs(teacher.world, seed) if tasks is None else tasks):
        yield teacher.play(bug, seed * 1_000_003 + index)
