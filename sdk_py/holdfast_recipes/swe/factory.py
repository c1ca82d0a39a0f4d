"""Repair tasks from source distributions: mutate one token, find the tests that fail, keep sound tasks (E1).

Owns the process: start state and tools as archives, the tests of the original library, sandboxes for mutants, and the resulting row
in SWE-bench's columns. A mutant is kept if its tests fail in both of two runs and pass in the original and in the solved state. A mutant
that no test reaches or detects, that hangs, or that breaks everything is counted and dropped. A few mutants of a library share a sandbox,
whose work directory is cleaned between them; one that looks flaky there is tried again in a fresh one. Rows come in an order that the
seed decides.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import random
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast_recipes.core import diffs
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError, completed, fault_of
from holdfast_recipes.harness.limits import Layer, Resources
from holdfast_recipes.harness.machine import Machine

from . import reached, workspace
from .archives import Archives, members, pack
from .issues import issue_text
from .job import SMALL, Maker, delete
from .mutation import Mutant, mutants
from .projects import Project, Target, fetch, fetch_test_runner
from .reports import Outcomes, TestOutcome
from .screening import screen
from .sources import SweTask
from .validation import LEAK_PLACES

T = TypeVar("T")

_TOOLS = "testbed-tools"
_PLUGIN = "holdfast_reached"
_REACHED = "/tmp/holdfast-reached.json"
_SHARE = 4
"""Mutants of one library that are tried in one sandbox, one after the other."""
_CLEAN = f"{workspace.GIT} checkout -q --force HEAD -- . && {workspace.GIT} clean -q -ffdx"
_PASSED = TestOutcome.PASSED
_MOST_NAMED = 200
_TIMES = re.compile(r"(\d+)m([\d.]+)s (\d+)m([\d.]+)s\s*\Z")
"""Of the processes that a shell waited for, the last line of bash's ``times``."""
MOST_FAILING = 0.5
"""A mutant that more than this share of the tests notices breaks the library as a whole, and is no task."""


@dataclass(frozen=True, slots=True)
class Material:
    """A library ready for mutation: the archives of its start state, and the texts of its modules."""

    project: Project
    archives: tuple[str, ...]
    modules: dict[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutant of a target. ``passing`` are the tests that pass in the original library, in every run."""

    material: Material
    target: Target
    mutant: Mutant
    number: int
    passing: frozenset[str]
    baseline: tuple[Outcomes, ...]
    timeout_s: float


@dataclass(slots=True)
class MutantCounts:
    """Counts of the mutants by outcome, and seconds of test runs in sandboxes, in wall time and processor time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    test_seconds: float = 0.0
    test_cpu_seconds: float = 0.0
    sandboxes: int = 0


class Factory:
    """Makes tasks in sandboxes that ``make`` creates. ``image`` needs Python 3, git and tar; the rows name it."""

    def __init__(
        self,
        make: Maker,
        archives: Archives,
        downloads: Path,
        *,
        image: str = "host",
        resources: Resources = SMALL,
        concurrency: int = 4,
        seed: int = 0,
    ) -> None:
        self.counts = MutantCounts()
        self._make, self._archives, self._downloads = make, archives, downloads
        self._image, self._resources, self._concurrency, self._seed = image, resources, concurrency, seed
        self._baselines = asyncio.Semaphore(concurrency)

    async def rows(
        self, projects: Sequence[Project], wanted: int, *, most_per_project: int | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Rows of validated tasks as they are made, at most ``wanted``, from all projects in turn. Ends early when the mutants do."""
        tools = await self._tools()
        candidates = await asyncio.gather(*(self._candidates(project, tools) for project in projects))
        shares = list(_in_turn([[each[at : at + _SHARE] for at in range(0, len(each), _SHARE)] for each in candidates]))
        order = [(number, place) for number, several in enumerate(shares) for place in range(len(several))]
        queue = enumerate(shares)
        made: Counter[str] = Counter()
        done: asyncio.Queue[tuple[tuple[int, int], str, dict[str, Any] | None]] = asyncio.Queue()

        async def work() -> None:
            for number, several in queue:
                name = several[0].material.project.name
                async with contextlib.aclosing(_Shared(self._make, self._archives, self._image, self._resources, self.counts)) as shared:
                    for place, candidate in enumerate(several):
                        full = most_per_project is not None and made[name] >= most_per_project
                        done.put_nowait(((number, place), name, None if full else await self._tried(candidate, shared)))

        workers = [asyncio.create_task(work(), name=f"mutants-{number}") for number in range(self._concurrency)]
        held: dict[tuple[int, int], tuple[str, dict[str, Any] | None]] = {}
        expected, given = 0, 0
        try:
            while given < wanted and expected < len(order):
                index, name, row = await done.get()
                held[index] = name, row
                while expected < len(order) and order[expected] in held and given < wanted:
                    name, row = held.pop(order[expected])
                    expected += 1
                    if row is not None and (most_per_project is None or made[name] < most_per_project):
                        made[name] += 1
                        given += 1
                        yield row
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    # Start states ---------------------------------------------------------------------------------------------------

    async def _tools(self) -> str:
        """The archive of pytest, compiled by the Python of the image: importing it is most of the time of a short test run."""
        files = []
        for wheel in await fetch_test_runner(self._downloads):
            with zipfile.ZipFile(wheel) as unpacked:
                files += [(name, unpacked.read(name), False) for name in unpacked.namelist() if not name.endswith("/")]
        files.append((f"{_PLUGIN}.py", Path(reached.__file__).read_bytes(), False))
        plain = pack(files, _TOOLS)
        async with self._sandbox(_nowhere(self._image)) as machine:
            compiled = (
                f"cd /tmp && tar -x && python3 -m compileall -q --invalidation-mode unchecked-hash {_TOOLS} >&2;"
                f" tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner {_TOOLS}"
            )
            result = await machine.exec(["bash", "-c", compiled], input=plain, timeout=300)
            workspace.raise_if_lost(result)
        return self._archives.add(result.stdout_bytes if result.ok else plain)

    async def _candidates(self, project: Project, tools: str) -> list[Candidate]:
        """The mutants of a library, in an order that the seed decides, with the results of the original library's tests."""
        files = list(members(await fetch(project, self._downloads)))
        texts = {path: data.decode() for path, data, _ in files if path in {target.module for target in project.targets}}
        material = Material(project, (self._archives.add(pack(files, "testbed")), tools), texts)
        found: list[Candidate] = []
        async with self._baselines, self._sandbox(_nowhere(self._image)) as machine:
            for target in project.targets:
                if await self._is_in_the_image(machine, target):
                    self.counts.outcomes["target_in_the_image"] += 1
                    continue
                task = _task(material, target, self._image)
                await workspace.start(machine, task, self._archives)
                runs = [await self._measured(machine, task, task.test_commands[0], 120) for _ in range(2)]
                passing = frozenset(screen([{}], [run.outcomes for run in runs]).fail_to_pass)
                if not passing or not all(run.finished for run in runs):
                    self.counts.outcomes["target_without_tests"] += 1
                    continue
                limit_s = 5.0 + 5 * max(run.seconds for run in runs)
                outcomes = tuple(run.outcomes for run in runs)
                lines = await self._reached(machine, task, target, limit_s)
                for number, one in enumerate(mutants(texts[target.module])):
                    if lines is not None and lines.isdisjoint(statement_lines(texts[target.module], one.line)):
                        self.counts.outcomes["unreached"] += 1
                    else:
                        found.append(Candidate(material, target, one, number, passing, outcomes, limit_s))
        random.Random(f"{self._seed}-{project.name}").shuffle(found)  # noqa: S311  an order, no secret
        operators: dict[str, list[Candidate]] = {}
        for each in found:
            operators.setdefault(each.mutant.operator, []).append(each)
        return list(_in_turn(list(operators.values())))  # every kind of bug, also in few tasks

    async def _reached(self, machine: Machine, task: SweTask, target: Target, limit_s: float) -> frozenset[int] | None:
        """Lines of the module that its tests run, None where that could not be found out: then every mutant is tried."""
        watch = f"REACHED={_REACHED} REACHED_FILES={shlex.quote(target.module)}"
        command = f"{watch} {task.test_commands[0].replace(' -m pytest ', f' -m pytest -p {_PLUGIN} ')} >/dev/null 2>&1; cat {_REACHED}"
        result = await machine.exec(
            ["bash", "-c", command.replace("{report}", "/dev/null")],
            cwd=task.workdir,
            env=workspace.environment(task),
            timeout=20 * limit_s,
        )
        workspace.raise_if_lost(result)
        try:
            return frozenset(json.loads(result.stdout)[target.module]) or None
        except (ValueError, KeyError):
            return None

    async def _is_in_the_image(self, machine: Machine, target: Target) -> bool:
        """Whether the image has a module of the same path: the solution could be read there."""
        path = target.module.removeprefix("src/")
        result = await machine.exec(["bash", "-c", f"find {' '.join(LEAK_PLACES)} -path '*/{path}' -print -quit 2>/dev/null"], timeout=120)
        workspace.raise_if_lost(result)
        return bool(result.stdout.strip())

    # Mutants --------------------------------------------------------------------------------------------------------

    async def _tried(self, candidate: Candidate, shared: _Shared) -> dict[str, Any] | None:
        """A mutant's row, or None. One more try, in a fresh sandbox, where one was lost, or where what earlier mutants left behind may
        have made it look flaky."""
        for last in (False, True):
            fresh = shared.is_fresh
            try:
                machine = await shared.machine(candidate)
                row, reason = await self._row(candidate, machine)
                cleaned = reason != "hangs" and (await machine.exec(["bash", "-c", _CLEAN], cwd=shared.workdir, timeout=60)).ok
            except FaultError as fault:
                row, reason, cleaned = None, f"fault_{fault.reason}", False
            except Exception as error:  # noqa: BLE001  one mutant harms no other
                row, reason, cleaned = None, f"fault_{fault_of(Layer.REWARD, error).reason}", False
            doubtful = reason == "flaky" and not fresh
            if not cleaned or doubtful:
                await shared.aclose()
            if doubtful and not last:
                continue
            self.counts.outcomes[reason] += 1
            if not reason.startswith("fault_"):
                return row
        return None

    async def _row(self, candidate: Candidate, machine: Machine) -> tuple[dict[str, Any] | None, str]:
        """In a sandbox with the original library."""
        material, target, mutant = candidate.material, candidate.target, candidate.mutant
        bug = mutant.patch(material.modules[target.module], target.module)
        task = _task(material, target, self._image)
        if (why := await workspace.apply(machine, task, bug)) is not None:
            raise FaultError(Layer.CREATION, Blame.ENVIRONMENT, "start_patch", why)
        first = await self._run(machine, task, candidate)
        noticed = [name for name in candidate.passing if first.outcomes.get(name) is not _PASSED]
        if not first.finished:
            return None, "hangs"
        if not noticed:
            return None, "survived"
        if len(noticed) > MOST_FAILING * len(candidate.passing) and len(noticed) > 3:
            return None, "breaks_everything"
        # the rest of the suite has been run in this state, and in the solved one, which equals the original library
        second = await self._run(machine, task, candidate, sorted(noticed))
        if await workspace.apply(machine, task, diffs.reverse(bug)) is not None:
            return None, "gold_does_not_apply"
        solved = await self._run(machine, task, candidate, sorted(noticed))
        if not (second.finished and solved.finished):
            return None, "hangs"
        before = [first.outcomes, {**first.outcomes, **second.outcomes}]
        after = [{**candidate.baseline[0], **solved.outcomes}, *candidate.baseline]
        found = screen(*([{name: run[name] for name in run.keys() & candidate.passing} for run in runs] for runs in (before, after)))
        if found.flaky:
            return None, "flaky"
        if not found.fail_to_pass:
            return None, "survived"
        return _row(candidate, self._image, bug, found.fail_to_pass, found.pass_to_pass, first.log, self._seed), "made"

    async def _run(self, machine: Machine, task: SweTask, candidate: Candidate, names: Sequence[str] = ()) -> workspace.TestRun:
        command = command_of(candidate.material.project, candidate.target, names)
        return await self._measured(machine, task, command, candidate.timeout_s)

    async def _measured(self, machine: Machine, task: SweTask, command: str, timeout_s: float) -> workspace.TestRun:
        """A run of the tests, whose seconds are counted. bash prints them behind the output."""
        run = await workspace.run_tests(machine, task, timeout_s=timeout_s, commands=[f"{command}\necho\ntimes"], sign=False)
        self.counts.test_seconds += run.seconds
        if (times := _TIMES.search(run.log)) is not None:
            user_min, user_s, system_min, system_s = map(float, times.groups())
            self.counts.test_cpu_seconds += 60 * (user_min + system_min) + user_s + system_s
        return run

    @contextlib.asynccontextmanager
    async def _sandbox(self, task: SweTask) -> AsyncIterator[Machine]:
        machine = await self._make(task, self._resources)
        self.counts.sandboxes += 1
        try:
            yield machine
        finally:
            await completed(delete(machine))


class _Shared:
    """A sandbox with a library in its start state, made when it is first needed and again after it was closed."""

    def __init__(self, make: Maker, archives: Archives, image: str, resources: Resources, counts: MutantCounts) -> None:
        self._make, self._archives, self._image, self._resources, self._counts = make, archives, image, resources, counts
        self._machine: Machine | None = None
        self.workdir = ""

    @property
    def is_fresh(self) -> bool:
        """Whether the next one is."""
        return self._machine is None

    async def machine(self, candidate: Candidate) -> Machine:
        if self._machine is None:
            task = _task(candidate.material, candidate.target, self._image)
            self._machine, self.workdir = await self._make(task, self._resources), task.workdir
            self._counts.sandboxes += 1
            await workspace.start(self._machine, task, self._archives)
        return self._machine

    async def aclose(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            await completed(delete(machine))


def statement_lines(source: str, line: int) -> range:
    """The lines of the innermost statement that holds a line; of one with a body those before the body."""
    chosen = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or []
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = range(node.lineno, max(last, node.lineno) + 1)
            if line in lines:
                chosen = lines  # a child comes after its parent
    return chosen


def command_of(project: Project, target: Target, names: Sequence[str] = ()) -> str:
    """The command that runs a target's tests in the work directory, or those named if they are not too many, independent of the
    project's own configuration of pytest."""
    settings = f"PYTHONPATH={project.source}:../{_TOOLS} PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1"
    options = "-q -c /dev/null --rootdir . -p no:cacheprovider --junitxml={report} -o junit_family=xunit1"
    options += f" -k {shlex.quote(f'not ({target.without})')}" if target.without else ""
    chosen = names if 0 < len(names) <= _MOST_NAMED else target.tests
    return f"{settings} python3 -m pytest {options} {' '.join(map(shlex.quote, chosen))}"


def _task(material: Material, target: Target, image: str, *, bug: str = "") -> SweTask:
    """A task for running tests: not yet one for a policy."""
    return SweTask(
        task_id="",
        source="mutation",
        repo=material.project.name,
        image=image,
        prompt="",
        gold_patch="",
        fail_to_pass=(),
        start_patch=bug,
        archives=material.archives,
        test_commands=(command_of(material.project, target),),
        log_parser="junit",
    )


def _nowhere(image: str) -> SweTask:
    return SweTask("", "mutation", "", image, "", "", ())


def _row(
    candidate: Candidate, image: str, bug: str, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], log: str, seed: int
) -> dict[str, Any]:
    """SWE-bench's columns, with ours behind them."""
    project, mutant = candidate.material.project, candidate.mutant
    module = candidate.target.module.removesuffix(".py").replace("/", ".")
    name = f"{project.name}__{project.version}.{module}.{candidate.number:04}"
    return {
        "instance_id": name,
        "repo": project.name,
        "version": project.version,
        "base_commit": project.sha256,
        "patch": diffs.reverse(bug),
        "test_patch": "",
        "problem_statement": issue_text(project.name, fail_to_pass[0], log, seed=random.Random(f"{seed}-{name}").getrandbits(31)),  # noqa: S311
        "hints_text": "",
        "FAIL_TO_PASS": list(fail_to_pass),
        "PASS_TO_PASS": list(pass_to_pass),
        "image_name": image,
        "install_config": {"test_cmd": command_of(project, candidate.target), "log_parser": "junit"},
        "archives": list(candidate.material.archives),
        "start_patch": bug,
        "split": project.split,
        "operator": mutant.operator,
        "licence": project.licence,
    }


def _in_turn(groups: Sequence[Sequence[T]]) -> Iterator[T]:
    """One of each group, then the next of each, until all are given."""
    iterators = [iter(group) for group in groups]
    while iterators:
        for each in list(iterators):
            try:
                yield next(each)
            except StopIteration:
                iterators.remove(each)
