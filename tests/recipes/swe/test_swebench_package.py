"""The real package swebench, 4.1 and 5.0, each in an environment of its own: commands, parsers, and our table and parsers beside them.

``make recipes-programs`` runs this; the packages take a minute to fetch.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from holdfast_recipes.swe import workspace
from holdfast_recipes.swe.bare import BareMachine
from holdfast_recipes.swe.job import SweJob
from holdfast_recipes.swe.outcomes import parsers, specs, swebench_package
from holdfast_recipes.swe.reports import TestOutcome
from holdfast_recipes.swe.sources import READERS, SweTask

from infra.recipes import corpus
from tests.recipes import packages
from tests.recipes.swe.test_job import GOLD, WRONG, edited
from tests.recipes.swe.test_signed import bare, runs

pytestmark = [pytest.mark.recipes_packages, pytest.mark.timeout(900)]

PASSED, FAILED, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED
MULTILINGUAL = {
    "C": ("jqlang/jq", "2919", "make check", "parse_log_jq"),
    "C++": ("fmtlib/fmt", "3901", "ctest --test-dir build", "parse_log_googletest"),
    "Go": ("caddyserver/caddy", "6411", "go test -v", "parse_log_gotest"),
    "Java": ("google/gson", "2479", "mvnd test -B", "parse_log_maven"),
    "JavaScript": ("babel/babel", "16130", "yarn jest", "parse_log_jest"),
    "TypeScript": ("vuejs/core", "11915", "pnpm run test", "parse_log_vitest"),
    "PHP": ("laravel/framework", "53949", "vendor/bin/phpunit --testdox", "parse_log_phpunit"),
    "Ruby": ("fluent/fluentd", "4655", "bundle exec ruby", "parse_log_ruby_unit"),
    "Rust": ("tokio-rs/axum", "734", "cargo test", "parse_log_cargo"),
}
"""A repository and a version of each language of SWE-bench Multilingual, with a part of its command and its parser."""
LOGS = {
    "parse_log_gotest": "--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.10s)\n--- SKIP: TestC (0.00s)\n",
    "parse_log_cargo": "test a::b ... ok\ntest c ... FAILED\ntest d ... ignored\n",
    "parse_log_django": "test_a (app.tests.Case) ... ok\ntest_b (app.tests.Case) ... FAIL\ntest_c (app.tests.Case) ... skipped 'no'\n",
}
"""Lines of the runners that both have a parser for."""


def row(repo: str, version: str) -> SweTask:
    """A row of SWE-bench Multilingual: its fields, with values of our own."""
    fields = {"repo": repo, "version": version, "instance_id": f"{repo.replace('/', '__')}-1", "base_commit": "a" * 40, "hints_text": ""}
    texts = {"problem_statement": "It is wrong.", "patch": "--- a/x\n", "test_patch": "--- a/y\n", "created_at": "2024-01-01T00:00:00Z"}
    return READERS["swe_bench"](fields | texts | {"FAIL_TO_PASS": '["TestA"]', "PASS_TO_PASS": '["TestC"]'})


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> str:
    python = str(packages.swebench_python("4.1.0"))
    monkeypatch.setenv(swebench_package.VARIABLE, python)
    return python


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> str:
    python = str(packages.swebench_python("5.0.2"))
    monkeypatch.setenv(swebench_package.VARIABLE, python)
    return python


@pytest.mark.parametrize("language", sorted(MULTILINGUAL))
async def test_multilingual_rows_get_the_commands_and_the_parser_of_their_repository(older: str, language: str) -> None:
    repo, version, part, parser = MULTILINGUAL[language]
    task = row(repo, version)
    commands = await workspace.test_commands_of(task)
    assert any(part in command for command in commands), commands
    assert await workspace.parser_of(task) == parser


async def test_every_multilingual_specification_can_be_read(older: str) -> None:
    """Of each repository that our table does not have: commands as text, and a parser that the package knows by its name."""
    code = "from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS as s; print({r: sorted(s[r])[-1] for r in s})"
    listed = subprocess.run([older, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    known = dict(re.findall(r"'([^']+)': '([^']+)'", listed))
    assert len(known) > 60
    assert specs.SPECS.keys() <= known.keys()
    empty = set()
    for repo in [name for values in MULTILINGUAL.values() for name in values[:1]]:
        found = await swebench_package.specification(repo, known[repo])
        assert found is not None
        if await swebench_package.parsed("nothing", str(found["parser"]), repo=repo, version=known[repo]) is None:
            empty.add(repo)
    assert empty == set()


@pytest.mark.parametrize(("repo", "version"), [("django/django", "5.2"), ("sympy/sympy", "1.9")])
async def test_our_table_has_the_commands_of_the_package(older: str, repo: str, version: str) -> None:
    found = await swebench_package.specification(repo, version)
    assert found is not None
    assert found["test_cmd"] == specs.SPECS[repo].command


@pytest.mark.parametrize("name", sorted(LOGS))
@pytest.mark.parametrize("version", ["4.1.0", "5.0.2"])
async def test_our_parsers_read_what_those_of_the_package_read(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(swebench_package.VARIABLE, str(packages.swebench_python(version)))
    assert await swebench_package.parsed(LOGS[name], name, repo="a/b", version="1") == parsers.NAMED[name](LOGS[name])


async def test_a_log_of_a_runner_that_only_the_package_reads(older: str) -> None:
    """The commands are another's, the parser is that of the row's repository."""
    log = "  \u2713 adds (3 ms)\n  \u2715 subtracts\n"
    machine = BareMachine()
    await machine.exec(["mkdir", "-p", "testbed"])
    run = await workspace.run_tests(machine, row("babel/babel", "16130"), commands=(f"printf '{log}'",), sign=False)
    assert run.outcomes == {"adds": PASSED, "subtracts": FAILED}


TESTS_EMPTIED = edited("tests/test_calc.py", None, "def test_add(): pass\n")
APPLY_FAILED = ">>>>> Patch Apply Failed"
"""What the package's harness writes into the log of a patch that does not apply; it then runs no test."""


@pytest.mark.parametrize(
    ("patch", "runs_as"),
    [(GOLD, GOLD), ("", ""), (edited("calc.py", WRONG, WRONG + "\n# seen\n"), None), (TESTS_EMPTIED, ""), ("no patch", APPLY_FAILED)],
    ids=["gold", "empty", "of no effect", "edits the tests", "malformed"],
)
async def test_each_kind_of_patch_has_the_verdict_of_the_packages_grader(
    newer: str, tmp_path: Path, patch: str, runs_as: str | None
) -> None:
    """Beside ours, the grader's on the log of the same run: what is left of a patch that edits the tests is nothing, and one that does not
    apply has the line that the package's harness writes."""
    small = runs("pytest", tmp_path)
    job = SweJob(small.task, bare, archives=small.archives)
    graded = await job.grade(patch)
    applied = patch if runs_as is None else runs_as
    log = applied if applied == APPLY_FAILED else (await job.tested(applied, job.resources)).log
    theirs = corpus._swebench(newer, log, "parse_log_pytest", small.task)
    assert ("resolved" if graded.reward == 1 else "not resolved") == theirs
    assert theirs == ("resolved" if patch == GOLD else "not resolved")


async def test_the_newer_package_has_no_specifications_and_that_is_no_fault(newer: str) -> None:
    assert await swebench_package.specification("google/gson", "2479") is None
    task = row("google/gson", "2479")
    assert await workspace.parser_of(task) == "pytest"
    assert SKIPPED in (await swebench_package.parsed(LOGS["parse_log_gotest"], "parse_log_gotest") or {}).values()
