"""The states of a living shell, and which may follow which.

Owns the table and nothing else: what happens on a transition is ``shell``'s. A transition that is not in the table raises.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What a shell is doing."""

    STARTING = "starting"
    """A new process that has run nothing: there is no state to be saved."""
    IDLE = "idle"
    """The next run may begin."""
    CHECKING = "checking"
    """It was asked for a report, after which its state should be written."""
    RUNNING = "running"
    """A run is under way."""
    ABORTING = "aborting"
    """The run is interrupted until it is reported, then what it left is killed."""
    SETTLING = "settling"
    """It has yet to open fresh pipes, since something that an earlier run left still holds the others."""
    LOST = "lost"
    """The process was killed or ended; what it leaves is killed, then another one is started."""
    LOADING = "loading"
    """The new process reads the state of the lost one."""
    ENDED = "ended"

    __hash__ = object.__hash__  # Enum's own is Python code that hashes the name


_S = State
TRANSITIONS: dict[State, frozenset[State]] = {
    _S.STARTING: frozenset({_S.RUNNING, _S.LOST, _S.ENDED}),
    _S.IDLE: frozenset({_S.RUNNING, _S.CHECKING, _S.LOST, _S.ENDED}),
    _S.CHECKING: frozenset({_S.IDLE, _S.SETTLING, _S.LOST, _S.ENDED}),
    _S.RUNNING: frozenset({_S.IDLE, _S.SETTLING, _S.ABORTING, _S.LOST, _S.ENDED}),
    _S.ABORTING: frozenset({_S.CHECKING, _S.LOST, _S.ENDED}),
    _S.SETTLING: frozenset({_S.IDLE, _S.CHECKING, _S.LOST, _S.ENDED}),
    _S.LOST: frozenset({_S.LOADING, _S.IDLE, _S.LOST, _S.ENDED}),  # killed, then ended
    _S.LOADING: frozenset({_S.IDLE, _S.LOST, _S.ENDED}),
    _S.ENDED: frozenset(),
}
BETWEEN_RUNS = frozenset({_S.STARTING, _S.IDLE, _S.SETTLING})
"""No run is in the process, and no answer is awaited."""
UNDER_WAY = frozenset({_S.RUNNING, _S.ABORTING})
"""A run is in the process."""
WITHOUT_PROCESS = frozenset({_S.LOST, _S.LOADING})


class IllegalTransitionError(RuntimeError):
    """A fault of this agent: the shell was to enter a state that may not follow."""


def check_transition(before: State, after: State) -> State:
    """``after``. Raises ``IllegalTransitionError``."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"a shell that is {before.value} cannot be {after.value}")
    return after
