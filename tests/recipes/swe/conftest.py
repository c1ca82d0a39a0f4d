"""A client of the shared stack, and a small task with its archive: a library of one module, a bug in it, tests of unittest's kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core import diffs
from holdfast_recipes.swe.archives import Archives, pack
from holdfast_recipes.swe.sources import SweTask

from tests.support.stack import Stack

RIGHT = '"""A calculator."""\n\n\ndef add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n'
BUG = (
    "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -2,6 +2,6 @@\n \n \n def add(a, b):\n"
    "-    return a + b\n+    return a - b\n \n \n"
)
# prints what pytest -rA prints, for an image without pytest
RUNNER = """
import importlib, sys, traceback
lines = []
for file in sys.argv[1:]:
    try:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    except Exception as error:
        lines.append(f"ERROR {file} - {error}")
        continue
    for name in sorted(dir(module)):
        if name.startswith("test_"):
            try:
                getattr(module, name)()
            except Exception:
                traceback.print_exc()
                lines.append(f"FAILED {file}::{name} - it failed")
            else:
                lines.append(f"PASSED {file}::{name}")
print("==== short test summary info ====", *lines, sep="\\n")
"""
TESTS = "from calc import add, double\n\ndef test_add(): assert add(2, 3) == 5\ndef test_double(): assert double(4) == 8\n"


@dataclass(frozen=True)
class Small:
    """A task, and the folder that holds its archive."""

    task: SweTask
    archives: Archives


def small_task(folder: Path, **changes: object) -> Small:
    archives = Archives(folder)
    files = {"calc.py": RIGHT, "run_tests.py": RUNNER, "tests/test_calc.py": TESTS, "tests/__init__.py": ""}
    digest = archives.add(pack([(path, text.encode(), False) for path, text in files.items()], "testbed"))
    fields: dict[str, object] = {
        "task_id": "calc-1",
        "source": "mutation",
        "repo": "calc",
        "image": "host",
        "prompt": "add gives wrong results",
        "gold_patch": diffs.reverse(BUG),
        "start_patch": BUG,
        "fail_to_pass": ("tests/test_calc.py::test_add",),
        "pass_to_pass": ("tests/test_calc.py::test_double",),
        "archives": (digest,),
        "test_commands": ("PYTHONPATH=. python3 run_tests.py tests/test_calc.py",),
    }
    return Small(SweTask(**{**fields, **changes}), archives)  # type: ignore[arg-type]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return small_task(tmp_path / "archives")


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client
