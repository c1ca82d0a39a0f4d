"""Grading of patches that try to write their own verdict, and runs in which no test was parsed, with the real runners."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.limits import Resources
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.swe.bare import BareMachine
from holdfast_recipes.swe.grading import Resolution
from holdfast_recipes.swe.job import SMALL, SweJob, maker
from holdfast_recipes.swe.outcomes.signed import verified
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.swe.conftest import Small, small_task
from tests.recipes.swe.test_job import GOLD, WRONG, edited
from tests.support.requires import requires

UNITTESTS = """import unittest
from calc import add, double

class Case(unittest.TestCase):
    def test_add(self): self.assertEqual(add(2, 3), 5)
    def test_double(self): self.assertEqual(double(4), 8)
"""
SUMMARY = "==== short test summary info ====\\nPASSED tests/test_calc.py::test_add\\nPASSED tests/test_calc.py::test_double"
LINES = "test_add (tests.test_case.Case.test_add) ... ok\\ntest_double (tests.test_case.Case.test_double) ... ok"
PRINTED = f'print("\\n{SUMMARY}\\n{LINES}", flush=True)'
SPOOFS = {
    "a summary printed at exit": f"import atexit\natexit.register(lambda: {PRINTED})\n",
    "a summary printed on import, then the end of the process": f"{PRINTED}\nimport os\nos._exit(0)\n",
    "a report written over": (
        "import glob, atexit\n"
        "def write():\n"
        '    for path in glob.glob("/tmp/*/report"):\n'
        '        open(path, "a").write(\'{"id": "tests/test_calc.py::test_add", "outcome": "PASSED"} 0\\n{"end": 0} 0\\n\')\n'
        f"    {PRINTED}\n"
        "atexit.register(write)\n"
    ),
    "functions that decide outcomes replaced": (
        "import unittest, unittest.case, sys\n"
        "def run(self, result=None):\n"
        "    result.startTest(self); result.addSuccess(self); result.stopTest(self)\n"
        "unittest.case.TestCase.run = run\n"
        'if "_pytest.python" in sys.modules:\n'
        "    import _pytest.python\n"
        "    _pytest.python.Function.runtest = lambda self: None\n"
    ),
    "a plugin registered while tests run": (
        "import sys, gc\n"
        'if "_pytest.config" in sys.modules:\n'
        "    import pytest\n"
        "    class Lenient:\n"
        "        @pytest.hookimpl(hookwrapper=True)\n"
        "        def pytest_runtest_makereport(self, item, call):\n"
        "            made = yield\n"
        '            made.get_result().outcome = "passed"\n'
        "def add(a, b):\n"
        "    from _pytest.config import PytestPluginManager\n"
        "    for each in gc.get_objects():\n"
        "        if isinstance(each, PytestPluginManager) and not each.has_plugin('lenient'):\n"
        "            each.register(Lenient(), 'lenient')\n"
        "    return a - b\n"
    ),
}


def runs(kind: str, folder: Path) -> Small:
    if kind == "pytest":
        command = f"{sys.executable} -m pytest -q -rA -c /dev/null --rootdir . -p no:cacheprovider tests/test_calc.py"
        small = small_task(folder, test_commands=(f"PYTHONPATH=. {command}",), log_parser="parse_log_pytest")
    else:
        names = "test_add (tests.test_case.Case.test_add)", "test_double (tests.test_case.Case.test_double)"
        small = small_task(folder, test_commands=("python3 -m unittest -v tests.test_case",), log_parser="parse_log_django")
        tests = edited("tests/test_case.py", None, UNITTESTS)
        python_3_10 = tuple(name.replace(f".Case.{name.split()[0]}", ".Case") for name in names)
        named = names if sys.version_info >= (3, 11) else python_3_10
        small = replace(small, task=replace(small.task, test_patch=tests, fail_to_pass=named[:1], pass_to_pass=named[1:]))
    return small


async def bare(task: SweTask, resources: Resources) -> Machine:
    return BareMachine()


def patch_with(code: str) -> str:
    return edited("calc.py", WRONG, WRONG + "\n\n" + code)


@pytest.mark.parametrize("kind", ["pytest", "unittest"])
@pytest.mark.parametrize("name", list(SPOOFS))
async def test_a_patch_that_writes_its_own_verdict_is_not_resolved(kind: str, name: str, tmp_path: Path) -> None:
    small = runs(kind, tmp_path)
    job = SweJob(small.task, bare, archives=small.archives)
    graded = await job.grade(patch_with(SPOOFS[name]))
    assert graded.reward == -1.0
    assert (await job.grade(GOLD)).reward == 1.0


async def test_a_signed_run_in_a_sandbox(client: AsyncSandboxClient, tmp_path: Path) -> None:
    small = runs("unittest", tmp_path)
    job = SweJob(small.task, maker(client), archives=small.archives, resources=SMALL)
    graded, _ = await job.graded(patch_with(SPOOFS["a summary printed on import, then the end of the process"]))
    assert (graded.resolution, graded.reason) == (Resolution.NO, "tests: ended_early")
    graded, _ = await job.graded(patch_with(SPOOFS["functions that decide outcomes replaced"]))
    assert (graded.resolution, graded.reason) == (Resolution.NO, "tampered: run")
    assert (await job.graded(GOLD))[0].resolution is Resolution.RESOLVED


@pytest.mark.parametrize("command", ["python3 -m no_such_runner", "echo nothing", "exit 3"])
async def test_a_run_in_which_no_test_was_parsed_is_a_fault_of_the_environment(command: str, tmp_path: Path) -> None:
    small = small_task(tmp_path, test_commands=(command,))
    graded = await SweJob(small.task, bare, archives=small.archives).grade(GOLD)
    assert (graded.reward, graded.blame, graded.reason) == (None, Blame.ENVIRONMENT, "environment: no_tests")


def test_a_report_with_a_line_of_another_hand_is_void() -> None:
    assert verified('{"end": 0} 00\n', "key").tampered == "report"
    assert verified("nonsense", "key").tampered == "report"
    assert not verified("", "key").ended


pytestmark = requires("git", "namespaces", "redis")
