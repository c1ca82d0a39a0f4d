"""Tasks from source distributions, in real sandboxes with real tests: what is kept, what is dropped, whether kept tasks are valid (E1)."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core import diffs
from holdfast_recipes.swe.archives import ArchiveError, Archives, members, pack
from holdfast_recipes.swe.factory import Factory
from holdfast_recipes.swe.grading import Resolution
from holdfast_recipes.swe.job import SMALL, SweJob, maker
from holdfast_recipes.swe.mutation import mutants
from holdfast_recipes.swe.projects import PROJECTS, FetchError, Project, fetch, project, sdist
from holdfast_recipes.swe.sources import SweTask, read_row
from holdfast_recipes.swe.validation import validate

from tests.recipes.swe.conftest import Small, small_task
from tests.support.requires import requires

pytestmark = requires("namespaces", "redis", "git")

LIBRARY = """
def total(numbers):
    result = 0
    for number in numbers:
        result += number
    return result


def countdown(n):
    while n > 0:
        n -= 1
    return n


def unseen(a, b):
    return a * b
"""
SUITE = """
import pathlib
import pytest
from library import countdown, total

@pytest.mark.parametrize("numbers, expected", [([], 0), ([1], 1), ([1, 2], 3), ([-1, 1], 0), ([5] * 3, 15), ([0], 0), ([2, 2], 4)])
def test_total(numbers, expected): assert total(numbers) == expected
def test_countdown(): assert countdown(3) == 0
def test_flaky():
    seen = pathlib.Path("/tmp/seen")
    times = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (times + 1))
    assert times % 2 == 0
"""


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


def factory(client: AsyncSandboxClient, folder: Path, downloads: Path, **more: Any) -> Factory:
    return Factory(maker(client), Archives(folder / "archives"), downloads, concurrency=4, **more)


def own_sdist(folder: Path, suite: str = SUITE) -> Project:
    files = {"library.py": LIBRARY, "test_library.py": suite, "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n"}
    path = folder / "library-1.0.tar.gz"
    path.write_bytes(gzip.compress(pack([(name, text.encode(), False) for name, text in files.items()], "library-1.0"), mtime=0))
    return sdist(path, "library.py", ("test_library.py",))


async def test_twenty_mutants_of_a_library(client: AsyncSandboxClient, tmp_path: Path, downloads: Path) -> None:
    made = factory(client, tmp_path, downloads)
    rows = [row async for row in made.rows([project("funcy")], 15)]
    assert len(rows) == 15
    assert sum(made.counts.outcomes.values()) >= 20, made.counts
    assert len({row["instance_id"] for row in rows}) == 15
    assert made.counts.test_cpu_seconds > 1
    tasks = [read_row(row, "mutation") for row in rows]
    for task, row in zip(tasks, rows, strict=True):
        (module,) = diffs.touched(task.gold_patch)
        assert module.startswith("funcy/")
        assert diffs.reverse(task.gold_patch) == task.start_patch
        assert not set(task.fail_to_pass) & set(task.pass_to_pass)
        assert module.rpartition("/")[2] not in task.prompt
        assert row["split"] == "train"
    assert len(Counter(row["operator"] for row in rows)) >= 4
    one = SweJob(tasks[0], maker(client), archives=Archives(tmp_path / "archives"), resources=SMALL)
    assert (await one.graded(tasks[0].gold_patch))[0].resolution is Resolution.RESOLVED
    nothing = "diff --git a/NEWS b/NEWS\nnew file mode 100644\n--- /dev/null\n+++ b/NEWS\n@@ -0,0 +1 @@\n+none\n"
    found, _ = await one.graded(nothing)
    assert found.resolution is Resolution.NO
    assert found.kept == (len(tasks[0].pass_to_pass),) * 2


async def test_outcome_of_each_mutant(client: AsyncSandboxClient, tmp_path: Path, downloads: Path) -> None:
    made = factory(client, tmp_path, downloads)
    rows = {row["instance_id"]: row async for row in made.rows([own_sdist(downloads)], 100)}
    outcomes = made.counts.outcomes
    assert sum(outcomes.values()) == len(mutants(LIBRARY))
    assert outcomes["unreached"] == 1  # unseen
    assert made.counts.sandboxes < sum(outcomes.values())
    assert outcomes["hangs"] >= 1  # n -= 1 → n += 1
    assert outcomes["made"] == len(rows) >= 3
    assert not any(reason.startswith("fault") for reason in outcomes)
    for row in rows.values():
        assert not any("test_flaky" in name for name in (*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]))
        assert "unseen" not in row["patch"]
    again = factory(client, tmp_path, downloads)
    assert {row["instance_id"]: row async for row in again.rows([own_sdist(downloads)], 100)} == rows
    fewer = [row["instance_id"] async for row in factory(client, tmp_path, downloads).rows([own_sdist(downloads)], 2)]
    assert fewer == list(rows)[:2]


async def test_a_module_that_the_image_contains_is_left_out(client: AsyncSandboxClient, tmp_path: Path, downloads: Path) -> None:
    """An agent could read the solution there. Every Python contains this module."""
    path = downloads / "json-9.tar.gz"
    path.write_bytes(gzip.compress(pack([("json/decoder.py", b"x = 1 < 2\n", False), ("test_x.py", b"", False)], "json-9")))
    made = factory(client, tmp_path, downloads)
    assert [row async for row in made.rows([sdist(path, "json/decoder.py", ("test_x.py",))], 5)] == []
    assert made.counts.outcomes == {"target_in_the_image": 1}


async def test_a_release_with_other_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError):
        await fetch(Project("inflection", "0.5.1", "0" * 64, "MIT", ()), tmp_path)


def test_projects_are_split_by_library() -> None:
    assert Counter(each.split for each in PROJECTS) == {"train": 7, "held_out": 2}
    assert len({each.sha256 for each in PROJECTS}) == len(PROJECTS)
    with pytest.raises(ValueError, match="no project"):
        project("nothing")


def test_archives_are_named_by_their_bytes(tmp_path: Path) -> None:
    archives = Archives(tmp_path)
    first = pack([("b", b"2", False), ("a", b"1", True)], "x")
    assert first == pack([("a", b"1", True), ("b", b"2", False)], "x")
    digest = archives.add(first)
    assert Archives(tmp_path).get(digest) == first
    (tmp_path / f"{digest}.tar").write_bytes(b"other")
    with pytest.raises(ArchiveError, match="does not match its SHA-256"):
        Archives(tmp_path).get(digest)
    with pytest.raises(ArchiveError, match="no archive"):
        archives.get("0" * 64)
    path = tmp_path / "evil.tar"
    path.write_bytes(pack([("../../etc/passwd", b"", False)], "x"))
    with pytest.raises(ArchiveError, match="passwd"):
        list(members(path))


# Validation of a task, ours or published --------------------------------------------------------------------------


async def checked(client: AsyncSandboxClient, small: Small) -> tuple[str, ...]:
    sandbox = await maker(client)(small.task, SMALL)
    try:
        return (await validate(sandbox, small.task, small.archives)).problems
    finally:
        await sandbox.delete()


FLAKY = "test -e /tmp/odd && rm /tmp/odd && exit; touch /tmp/odd; PYTHONPATH=. python3 run_tests.py tests/test_calc.py"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"test_commands": (FLAKY,)}, "flaky: tests/test_calc.py::test_double"),
        ({"fail_to_pass": ("tests/test_calc.py::test_double",)}, "does not go from failing to passing: tests/test_calc.py::test_double"),
        ({"pass_to_pass": ("tests/test_calc.py::test_add",)}, "does not pass in both states: tests/test_calc.py::test_add"),
        ({"test_patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "the tests do not apply"),
        ({"start_patch": ""}, "the gold patch does not apply"),
    ],
)
async def test_a_task_is_rejected_with_reasons(
    client: AsyncSandboxClient, tmp_path: Path, changes: dict[str, Any], problem: str | None
) -> None:
    found = await checked(client, small_task(tmp_path, **changes))
    if problem is None:
        assert found == ()
    else:
        assert any(line.startswith(problem) for line in found), found


async def test_a_solution_that_the_image_holds_is_a_leak(client: AsyncSandboxClient, tmp_path: Path) -> None:
    """As in published images with a later release of the project in site-packages (a known trap of one published set)."""
    small = small_task(tmp_path)
    later = "mkdir -p /opt/site-packages && sed 's/a - b/a + b/' calc.py > /opt/site-packages/calc.py"
    leaky = small_task(tmp_path, start_commands=(later,))
    assert await checked(client, small) == ()
    assert await checked(client, leaky) == ("leak: /opt/site-packages/calc.py holds 1 of 1 lines",)


def test_rows_are_tasks() -> None:
    row = {
        "instance_id": "a",
        "repo": "r",
        "problem_statement": "p",
        "FAIL_TO_PASS": ["t"],
        "patch": "x",
        "start_patch": "y",
        "image_name": "host",
        "archives": ["0" * 64],
        "install_config": {"test_cmd": "run {report}"},
        "split": "held_out",
    }
    task = read_row(row, "mutation")
    assert isinstance(task, SweTask)
    assert (task.archives, task.test_commands, task.split, task.log_parser) == (("0" * 64,), ("run {report}",), "held_out", "junit")
    assert task.to_json()["split"] == "held_out"
