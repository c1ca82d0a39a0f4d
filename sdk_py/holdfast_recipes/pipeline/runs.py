"""A run's folder: its settings and the journals of its results (C7, C8). Killing the writer loses no finished rollout.

Owns ``run.json`` (settings, which a resumed run must share) and three journals: ``trajectories.jsonl``, in which each complete line is
a finished rollout; ``faults.jsonl`` with trajectories that failed because of infrastructure, which are tried again; ``attempts.jsonl``
with the time and cost of every try. Does not run rollouts (``collect``).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast_recipes.core.records import to_json
from holdfast_recipes.core.trajectory import Trajectory

from .errors import DataError, RunMismatchError, SettingError
from .evaluate import Trial, trial_of
from .files import TRAJECTORIES, Journal, lines, write_lines

RUN, FAULTS, ATTEMPTS = "run.json", "faults.jsonl", "attempts.jsonl"
_INDEX = re.compile(r"/([0-9]+)(?:#[0-9]+)?$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,58}[A-Za-z0-9])?")


class Task(Protocol):
    """What a run needs of a task; ``SweTask`` and ``HarborTask`` are ones. Its record is part of the run's digest of tasks."""

    @property
    def task_id(self) -> str: ...
    @property
    def image(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RolloutSlot:
    """The rollout number ``index`` of a task, and how many tries of it infrastructure has spoiled."""

    task: Any
    """A ``Task``, of the kind that the rollout knows."""
    index: int
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a slot. ``seconds`` by layer; ``events`` are the counts of its layers."""

    trajectory: Trajectory
    wall_s: float = 0.0
    cost_usd: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: ``rollouts`` of each task. ``settings`` are the other inputs of a rollout (policy, harness, limits)."""

    name: str
    rollouts: int
    seed: int = 0
    tries: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingError(f"a run's name must be at most 60 letters, digits, '.', '_' and '-', not {self.name!r}")
        if self.rollouts < 1 or self.tries < 1:
            raise SettingError(f"at least one rollout per task and one try are needed: {self.rollouts}, {self.tries}")

    def seed_of(self, slot: RolloutSlot) -> int:
        """In 31 bits, of run, task, rollout and try: the same wherever and whenever the slot is rolled out."""
        words = json.dumps([self.seed, slot.task.task_id, slot.index, slot.faults])
        return random.Random(words).getrandbits(31)  # noqa: S311  sampling, no secret

    def id_of(self, slot: RolloutSlot) -> str:
        tried = f"#{slot.faults}" if slot.faults else ""
        return f"{self.name}/{slot.task.task_id}/{slot.index}{tried}"


class Run:
    """An open run. ``with Run.open(…) as run``; one process at a time (RunInUseError)."""

    def __init__(self, folder: Path, plan: Plan, tasks: Sequence[Task], journal: Journal) -> None:
        self.folder, self.plan, self.tasks = folder, plan, tasks
        self.outcomes: Counter[Trial] = Counter()
        self._done = journal
        self._faults = self._attempts = None
        try:
            self._faults, self._attempts = Journal(folder / FAULTS), Journal(folder / ATTEMPTS)
            self.cut_bytes = sum(each.cut_bytes for each in (journal, self._faults, self._attempts))
            self._finished = {self._key(record) for record in self._records(folder / TRAJECTORIES)}
            self._spoiled = Counter(self._key(record) for record in self._records(folder / FAULTS))
        except BaseException:
            self.close()
            raise
        places = [(task.task_id, index) for task in tasks for index in range(plan.rollouts)]
        self.finished = sum(place in self._finished for place in places)
        """Rollouts of this plan that are done, those of earlier processes included."""
        self.given_up = sum(place not in self._finished and self._spoiled[place] >= plan.tries for place in places)
        """Rollouts of this plan that infrastructure spoiled too often."""

    @classmethod
    def open(cls, folder: Path, plan: Plan, tasks: Sequence[Task]) -> Run:
        """Begin a run, or go on with one. Raises RunMismatchError where the folder holds one with other tasks or settings; only the
        numbers of rollouts and tries may change."""
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(folder / TRAJECTORIES)
        try:
            wanted = {"format": 1, "name": plan.name, "seed": plan.seed, "settings": json.loads(json.dumps(plan.settings))}
            wanted |= {"tasks": len(tasks), "tasks_sha256": digest(tasks)}
            there = _read(folder / RUN)
            if there is not None:
                other = sorted(key for key in wanted if there.get(key) != wanted[key])
                if other:
                    raise RunMismatchError(
                        f"{folder} holds a run with other {', '.join(other)}", hint="give the same arguments, or another folder"
                    )
            elif (folder / TRAJECTORIES).stat().st_size:
                raise RunMismatchError(f"{folder} holds trajectories, but no {RUN}", hint="give another folder")
            write_lines(folder / RUN, [wanted | {"rollouts": plan.rollouts, "tries": plan.tries}])
        except BaseException:
            journal.close()
            raise
        return cls(folder, plan, tasks, journal)

    @property
    def total(self) -> int:
        return len(self.tasks) * self.plan.rollouts

    def slots(self) -> Iterator[RolloutSlot]:
        """The remaining rollouts, task by task. One that failed ``tries`` times because of infrastructure is given up."""
        for task in self.tasks:
            for index in range(self.plan.rollouts):
                key = (task.task_id, index)
                if key not in self._finished and self._spoiled[key] < self.plan.tries:
                    yield RolloutSlot(task, index, self._spoiled[key])

    def record(self, slot: RolloutSlot, attempt: Attempt) -> RolloutSlot | None:
        """Put a try on disk; the slot to try again where infrastructure spoiled it and tries are left."""
        kind = trial_of(attempt.trajectory)
        key = (slot.task.task_id, slot.index)
        measured: dict[str, Any] = {"wall_s": round(attempt.wall_s, 3), "cost_usd": attempt.cost_usd}
        measured |= {"seconds": {name: round(value, 3) for name, value in attempt.seconds.items()}}
        self._attempts_journal.append(
            {"task_id": key[0], "index": key[1], "trajectory_id": attempt.trajectory.trajectory_id, "outcome": str(kind)}
            | measured
            | {"events": dict(attempt.events)}
        )
        spoiled = kind is Trial.INFRASTRUCTURE
        journal = self._faults_journal if spoiled else self._done
        journal.append({"place": list(key), "trajectory": to_json(attempt.trajectory)} if spoiled else to_json(attempt.trajectory))
        self.outcomes[kind] += 1
        if not spoiled:
            self._finished.add(key)
            self.finished += 1
            return None
        self._spoiled[key] += 1
        if self._spoiled[key] < self.plan.tries:
            return RolloutSlot(slot.task, slot.index, self._spoiled[key])
        self.given_up += 1
        return None

    def close(self) -> None:
        for journal in (self._attempts, self._faults, self._done):
            if journal is not None:
                journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _faults_journal(self) -> Journal:
        assert self._faults is not None
        return self._faults

    @property
    def _attempts_journal(self) -> Journal:
        assert self._attempts is not None
        return self._attempts

    @staticmethod
    def _records(path: Path) -> Iterator[dict[str, Any]]:
        return (record for _, record in lines(path))

    @staticmethod
    def _key(record: Mapping[str, Any]) -> tuple[str, int]:
        if "place" in record:
            return str(record["place"][0]), int(record["place"][1])
        found = _INDEX.search(str(record.get("trajectory_id", "")))
        if found is None:
            raise DataError(f"the trajectory {record.get('trajectory_id')!r} is not of a collection", hint="give another folder")
        return str(record.get("task_id")), int(found[1])


def digest(tasks: Sequence[Task]) -> str:
    """A digest of all fields of the tasks, in order."""
    made = hashlib.sha256()
    for task in tasks:
        made.update(json.dumps(task.to_json(), sort_keys=True).encode() + b"\n")
    return made.hexdigest()


def attempts(folder: Path) -> list[dict[str, Any]] | None:
    """The attempts of a run's folder; None where there are none."""
    path = folder / ATTEMPTS
    return [record for _, record in lines(path)] if path.is_file() else None


def faults(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of trajectories that infrastructure spoiled in a run."""
    path = folder / FAULTS
    return (record["trajectory"] for _, record in lines(path)) if path.is_file() else iter(())


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    return next((record for _, record in lines(path)), None)
