"""Whether a task can be used: its tests in the start state and in the solved one, several times each, and its solution not in the image.

Owns the running of both in a sandbox; the sorting is ``screening``'s and ``leaks``'. For rows of published sets as for our own. A task is
rejected with reasons, it never raises for what its tests do; a sandbox that is lost raises FaultError, and the task may be tried again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_recipes.core import diffs
from holdfast_recipes.harness.machine import Machine

from . import workspace
from .archives import Archives
from .leaks import Leak, distinctive_lines, scan
from .screening import Screened, problems, screen
from .sources import SweTask

LEAK_PLACES = ("/usr/lib/python3*", "/usr/local/lib", "/opt", "/root", "/home", "/srv", "/var/lib")
_MOST_CANDIDATES = 200


@dataclass(frozen=True, slots=True)
class Validation:
    """``problems`` empty: the task can be used. ``screened`` sorts all tests that were seen."""

    problems: tuple[str, ...]
    screened: Screened | None = None
    leaks: tuple[Leak, ...] = ()
    seconds: float = 0.0


async def validate(machine: Machine, task: SweTask, archives: Archives | None, *, runs: int = 2, timeout_s: float = 500.0) -> Validation:
    """Run the tests ``runs`` times in the start state and after the gold patch, in a sandbox that is fresh; before, look for the
    solution."""
    await workspace.start(machine, task, archives)
    found = tuple(await leaks(machine, task))
    if task.test_patch and (why := await workspace.apply(machine, task, task.test_patch)) is not None:
        return Validation((f"the tests do not apply: {why}",), None, found)
    before = [await workspace.run_tests(machine, task, timeout_s=timeout_s) for _ in range(runs)]
    if (why := await workspace.apply(machine, task, task.gold_patch)) is not None:
        return Validation((f"the gold patch does not apply: {why}",), None, found)
    after = [await workspace.run_tests(machine, task, timeout_s=timeout_s) for _ in range(runs)]
    lines = [f"leak: {leak.path} holds {leak.found} of {leak.distinctive} lines" for leak in found]
    lines += [] if any(run.started for run in (*before, *after)) else ["no test was parsed"]
    lines += ["the tests do not finish"] if any(not run.finished for run in (*before, *after)) else []
    outcomes = [run.outcomes for run in before], [run.outcomes for run in after]
    lines += problems(*outcomes, task.fail_to_pass, task.pass_to_pass)
    return Validation(tuple(lines), screen(*outcomes), found, sum(run.seconds for run in (*before, *after)))


async def leaks(machine: Machine, task: SweTask, places: Sequence[str] = LEAK_PLACES) -> list[Leak]:
    """Files outside the repository in which the gold patch can be read. Files are found by a line that only the solution has."""
    known = await _known_lines(machine, task)
    lines = distinctive_lines(task.gold_patch, known)
    if not lines:
        return []
    wanted = "".join(f"{line}\n" for each in lines.values() for line in each)
    # the shell expands the places; those that are not there are passed over
    ours = shlex.quote(task.workdir.rpartition("/")[2])
    command = f"grep -rIlF -f /dev/stdin -s --exclude-dir={ours} -- {' '.join(places)} | head -n {_MOST_CANDIDATES}"
    result = await machine.exec(["bash", "-c", command], input=wanted, timeout=300)
    workspace.raise_if_lost(result)
    files = []
    for path in result.stdout.splitlines():
        content = await machine.exec(["head", "-c", "2000000", path], timeout=60)
        workspace.raise_if_lost(content)
        files.append((path, content.stdout))
    return scan(task.gold_patch, files, known=known)


async def _known_lines(machine: Machine, task: SweTask) -> list[str]:
    """Lines of the unfixed files: they give nothing away."""
    known: list[str] = []
    for path in diffs.touched(task.gold_patch):
        result = await machine.exec(["cat", "--", path], cwd=task.workdir, timeout=60)
        workspace.raise_if_lost(result)
        known += result.stdout.splitlines()
    return known
