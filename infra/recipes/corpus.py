"""Real logs of the repositories of SWE-bench: releases from PyPI with a mutant and its reversal as gold, run in sandboxes.

Owns which release, module and tests stand for a repository, the run of four patches on each (gold, empty, malformed, one that edits the
tests), and the comparison of our verdict with that of the package swebench on the same log. Packages and sources are installed by the
caller: ``--packages`` is a folder of site-packages below /usr, which the image `host` shows, ``--sources`` has unpacked sdists.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast import AsyncSandboxClient
from holdfast_recipes.core import diffs
from holdfast_recipes.harness.limits import Resources
from holdfast_recipes.swe.archives import Archives
from holdfast_recipes.swe.grading import Resolution, grade
from holdfast_recipes.swe.job import SweJob, maker
from holdfast_recipes.swe.mutation import mutants
from holdfast_recipes.swe.outcomes import parsers, specs
from holdfast_recipes.swe.reports import TestOutcome
from holdfast_recipes.swe.sources import SweTask
from holdfast_server.embed import running_stack

MOST_MUTANTS = 8
_SKIPPED = ("__pycache__", ".git")


@dataclass(frozen=True, slots=True)
class Release:
    """``root`` is the folder that becomes the work directory, below the sources or (``package``) a package below the packages."""

    repo: str
    root: str
    module: str
    tests: str
    path: str = "."
    package: bool = False
    libraries: str = ""
    """The folder of shared libraries that a wheel has beside its package."""


RELEASES = (
    Release("django/django", "django", "django/utils/dateformat.py", "tests/utils_tests/test_dateformat.py"),
    Release("sympy/sympy", "sympy", "sympy/core/logic.py", "sympy/core/tests/test_logic.py", package=True),
    Release("sphinx-doc/sphinx", "sphinx", "sphinx/util/matching.py", "tests/test_util/test_util_matching.py"),
    Release(
        "scikit-learn/scikit-learn",
        "sklearn",
        "sklearn/utils/_bunch.py",
        "sklearn/utils/tests/test_bunch.py",
        package=True,
        libraries="scikit_learn.libs",
    ),
    Release("matplotlib/matplotlib", "matplotlib", "matplotlib/bezier.py", "matplotlib/tests/test_bezier.py", package=True),
    Release("pallets/flask", "flask", "src/flask/json/tag.py", "tests/test_json_tag.py", path="src"),
    Release("psf/requests", "requests", "src/requests/structures.py", "tests/test_structures.py", path="src"),
    Release("pydata/xarray", "xarray", "xarray/core/options.py", "xarray/tests/test_options.py", package=True),
    Release("pylint-dev/pylint", "pylint", "pylint/utils/utils.py", "tests/utils/unittest_utils.py"),
    Release("astropy/astropy", "astropy", "astropy/utils/decorators.py", "astropy/utils/tests/test_decorators.py", package=True),
    Release("mwaskom/seaborn", "seaborn", "seaborn/_core/rules.py", "tests/_core/test_rules.py"),
    Release("marshmallow-code/marshmallow", "marshmallow", "src/marshmallow/error_store.py", "tests/test_error_store.py", path="src"),
    Release("pytest-dev/pytest", "pytest", "src/_pytest/mark/expression.py", "testing/test_mark_expression.py", path="src"),
)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.recipes.corpus", description=__doc__)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--swebench", required=True, help="the Python of an environment with swebench 5.x")
    parser.add_argument("--out", type=Path, required=True, help="a folder for logs and table.json, where it goes on")
    parser.add_argument("--page", type=Path, help="also the table in Markdown")
    parser.add_argument("--only", nargs="+", default=[], help="repositories")
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-corpus-") as data, running_stack(Path(data)) as stack:
        return asyncio.run(_all(arguments, stack.url, stack.key))


async def _all(arguments: argparse.Namespace, url: str, key: str) -> int:
    table = arguments.out / "table.json"
    done = json.loads(table.read_text()) if table.exists() else {}
    async with AsyncSandboxClient(url, key) as client:
        for release in RELEASES:
            if release.repo in done or (arguments.only and release.repo not in arguments.only):
                continue
            try:
                done[release.repo] = await _one(release, client, arguments)
            except Exception as error:  # noqa: BLE001  the others go on; the table says what is missing
                print(f"{release.repo}: {type(error).__name__}: {error}"[:600], flush=True)
                continue
            table.write_text(json.dumps(done, indent=1) + "\n")
            print(release.repo, json.dumps(done[release.repo]["patches"]), flush=True)
    equal = all(each["ours"] == each["swebench"] for row in done.values() for each in row["patches"].values() if each["swebench"])
    if arguments.page:
        arguments.page.write_text(page(done))
    print(f"{len(done)} repositories; every verdict equal: {equal}")
    return 0 if equal else 1


async def _one(release: Release, client: AsyncSandboxClient, arguments: argparse.Namespace) -> dict[str, Any]:
    archives = Archives(arguments.out / "archives")
    root = _root(release, arguments)
    source = (root / release.module if not release.package else arguments.packages / release.module).read_text()
    digest = archives.add(_packed(release, arguments))
    spec = specs.SPECS[release.repo]
    environment = f"export PATH=/opt/corpus:$PATH PYTHONPATH={release.path}:{arguments.packages} MPLBACKEND=agg; "
    task = SweTask(
        task_id=release.repo.replace("/", "__"),
        source="swe_bench",
        repo=release.repo,
        image="host",
        prompt="",
        gold_patch="",
        fail_to_pass=(),
        archives=(digest,),
        start_commands=("mkdir -p /opt/corpus && ln -sf /usr/bin/python3 /opt/corpus/python",),
        test_patch="",
        log_parser=spec.parser,
    )
    command = specs.command(replace(task, fail_to_pass=(f"{release.tests}::x",)), spec)
    task = replace(task, test_commands=(environment + command,))
    make = maker(client)
    job = SweJob(task, make, archives=archives, resources=Resources(2, 2), test_timeout_s=500)
    clean = await job.tested("", job.resources)
    passed = {name for name, outcome in clean.outcomes.items() if outcome is TestOutcome.PASSED}
    if not passed:
        raise ValueError(f"nothing passes: {clean.log[-400:]}")
    for mutant in _some(list(mutants(source))):
        bug = mutant.patch(source, release.module)
        found = await SweJob(replace(task, start_patch=bug), make, archives=archives, resources=job.resources).tested("", job.resources)
        failing = {name for name in passed if found.outcomes.get(name) is not TestOutcome.PASSED}
        if found.finished and failing and found.outcomes:
            break
    else:
        raise ValueError("no mutant is noticed")
    names = tuple(sorted(failing)), tuple(sorted(passed - failing))
    task = replace(task, start_patch=bug, gold_patch=diffs.reverse(bug), fail_to_pass=names[0], pass_to_pass=names[1])
    job = SweJob(task, make, archives=archives, resources=job.resources, test_timeout_s=500)
    logs = {"gold": clean, "empty": found}
    edits = _edited(release, (root / release.tests if not release.package else arguments.packages / release.tests).read_text())
    patches = {"gold": task.gold_patch, "empty": "", "malformed": "no patch", "edits the tests": edits}
    row: dict[str, Any] = {"mutant": f"{mutant.operator}, line {mutant.line}", "tests": len(passed), "failing": len(failing), "patches": {}}
    for name, patch in patches.items():
        graded, _ = await job.graded(patch)
        theirs = ""
        if name in logs:
            run = logs[name]
            (arguments.out / f"{task.task_id}.{name}.log").write_text(run.log)
            row["signed" if name == "gold" else "signed_empty"] = run.signed is not None
            theirs = _swebench(arguments.swebench, run.log, spec.parser, task)
            mine = grade(parsers.NAMED[spec.parser](run.log), *names).resolution
            row["patches"][f"{name}, log alone"] = {"ours": _word(mine), "swebench": theirs}
        row["patches"][name] = {"ours": _word(graded.resolution), "swebench": theirs, "reason": graded.reason}
    return row


_HEAD = """# Verdicts on real logs

Made by `python -m infra.recipes.corpus`: releases from PyPI with a mutant of one module, its reversal as gold patch, and the tests of
that module, run in sandboxes of the image `host`. These are not rows of the published sets, whose images come from registries of
containers. "Log alone" is our parser's verdict on the log of a run, beside that of the grader of the package swebench (5.0.2) on the same
log; the four patches are graded as a rollout's would be. A patch that is empty, malformed, or edits only the tests is not resolved
without a run. "Signed" says whether a rollout's verdict comes from a signed report (sympy's own runner writes none).

| {} |
|---|---|---|---|---|---|---|---|---|
"""
_COLUMNS = (
    *("repository", "tests (failing with the mutant)", "signed", "gold: ours, swebench", "no patch: ours, swebench"),
    *("gold", "empty", "malformed", "edits the tests"),
)


def page(done: dict[str, Any]) -> str:
    """The table of the repositories that were run."""
    rows = []
    for repo, row in sorted(done.items()):
        patches = row["patches"]
        pairs = [f"{patches[name]['ours']}, {patches[name]['swebench']}" for name in ("gold, log alone", "empty, log alone")]
        graded = [patches[name]["ours"] for name in ("gold", "empty", "malformed", "edits the tests")]
        cells = [repo, f"{row['tests']} ({row['failing']})", "yes" if row["signed"] else "no", *pairs, *graded]
        rows.append("| " + " | ".join(cells) + " |\n")
    missing = [release.repo for release in RELEASES if release.repo not in done]
    return _HEAD.format(" | ".join(_COLUMNS)) + "".join(rows) + (f"\nNot run: {', '.join(missing)}.\n" if missing else "")


def _word(resolution: Resolution) -> str:
    return "resolved" if resolution is Resolution.RESOLVED else "not resolved"


def _some(found: list[Any]) -> Iterator[Any]:
    """Spread over the module."""
    yield from found[:: max(1, len(found) // MOST_MUTANTS)]


def _edited(release: Release, text: str) -> str:
    """A patch that empties the tests: none of it counts."""
    with tempfile.TemporaryDirectory() as folder:
        for side, content in (("a", text), ("b", "def test_all(): pass\n")):
            path = Path(folder) / side / release.tests
            path.parent.mkdir(parents=True)
            path.write_text(content)
        return subprocess.run(
            ["git", "diff", "--no-index", "--no-prefix", "a", "b"], cwd=folder, capture_output=True, text=True, check=False
        ).stdout


def _root(release: Release, arguments: argparse.Namespace) -> Path:
    if release.package:
        return Path(arguments.packages)
    return next(each for each in Path(arguments.sources).iterdir() if each.name.startswith(f"{release.root}-"))


def _packed(release: Release, arguments: argparse.Namespace) -> bytes:
    """The work directory as an archive; sympy's wheel has no ``bin/test``, which only calls its runner."""
    data = io.BytesIO()
    top = _root(release, arguments)
    with tarfile.open(fileobj=data, mode="w") as archive:
        folders = [top / release.root, *([top / release.libraries] if release.libraries else [])] if release.package else [top]
        for path in sorted(path for folder in folders for path in folder.rglob("*")):
            if path.is_file() and not set(_SKIPPED) & set(path.parts):
                archive.add(path, f"testbed/{path.relative_to(top)}", recursive=False)
        if (
            release.repo == "matplotlib/matplotlib"
        ):  # its wheel leaves out the images that its tests compare with, and asks for their folder
            archive.addfile(tarfile.TarInfo("testbed/matplotlib/tests/baseline_images/none"))
        if release.repo == "sympy/sympy":
            script = _BIN_TEST
            entry = tarfile.TarInfo("testbed/bin/test")
            entry.size, entry.mode = len(script), 0o755
            archive.addfile(entry, io.BytesIO(script))
    return data.getvalue()


_BIN_TEST = b"""#!/usr/bin/python3
import sys
from sympy.testing.runtests import test
files = [word for word in sys.argv[1:] if word[0] != "-"]
sys.exit(not test(*files, verbose=True, colors=False, subprocess=False))
"""
_INNER = """
import json, sys
from types import SimpleNamespace
order = json.load(sys.stdin)
sys.stdout, out = sys.stderr, sys.stdout
from swebench.harness.grading import get_eval_tests_report, get_resolution_status
from swebench.harness.log_parsers import PARSER_REGISTRY
status = PARSER_REGISTRY[order["parser"]](order["log"], SimpleNamespace(repo=order["repo"], version=""))
gold = {"FAIL_TO_PASS": order["fail"], "PASS_TO_PASS": order["pass"]}
json.dump(get_resolution_status(get_eval_tests_report(status, gold)), out)
"""


def _swebench(python: str, log: str, parser: str, task: SweTask) -> str:
    """The verdict of the package's grader on a log."""
    order = {"log": log, "parser": parser, "repo": task.repo, "fail": task.fail_to_pass, "pass": task.pass_to_pass}
    result = subprocess.run([python, "-I", "-c", _INNER], input=json.dumps(order), capture_output=True, text=True, check=True)
    return "resolved" if json.loads(result.stdout) == "RESOLVED_FULL" else "not resolved"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
