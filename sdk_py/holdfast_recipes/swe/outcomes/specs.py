"""How the tests of a repository are run in the published sets: the command, how it names tests, and the parser of its output.

Owns the table for the Python repositories of SWE-bench (facts of its specifications 4.1) and the default, pytest. A row that brings a
command or a parser of its own wins; for other languages the package swebench has the specifications (``swebench_package``).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from holdfast_recipes.core import diffs
from holdfast_recipes.swe.sources import SweTask

_NO_TESTS = {".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml", ".rst", ".html", ".npz", ".svg"}


@dataclass(frozen=True, slots=True)
class Spec:
    """``command`` is followed by the tests: files, or with ``modules`` dotted names below ``tests/``."""

    command: str
    parser: str = "parse_log_pytest"
    modules: bool = False


_PYTEST = "python -m pytest -rA -p no:cacheprovider"
SPECS = {
    "astropy/astropy": Spec("python -m pytest -rA -vv -o console_output_style=classic --tb=no -p no:cacheprovider", "parse_log_astropy"),
    "django/django": Spec("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1", "parse_log_django", modules=True),
    "matplotlib/matplotlib": Spec(_PYTEST, "parse_log_matplotlib"),
    "mwaskom/seaborn": Spec("python -m pytest --no-header -rA -p no:cacheprovider", "parse_log_seaborn"),
    "pallets/flask": Spec(_PYTEST, "parse_log_flask"),
    "psf/requests": Spec(_PYTEST, "parse_log_requests"),
    "pydata/xarray": Spec(_PYTEST, "parse_log_xarray"),
    "pylint-dev/pylint": Spec(_PYTEST, "parse_log_pylint"),
    "pytest-dev/pytest": Spec("python -m pytest -rA", "parse_log_pytest"),
    "scikit-learn/scikit-learn": Spec(_PYTEST, "parse_log_scikit"),
    "sphinx-doc/sphinx": Spec("python -m pytest -rA --durations 25 -p no:cacheprovider", "parse_log_sphinx"),
    "sympy/sympy": Spec("PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose", "parse_log_sympy"),
    "marshmallow-code/marshmallow": Spec(_PYTEST, "parse_log_marshmallow"),
    "pvlib/pvlib-python": Spec(_PYTEST, "parse_log_pvlib"),
    "pydicom/pydicom": Spec(_PYTEST, "parse_log_pydicom"),
    "pylint-dev/astroid": Spec(_PYTEST, "parse_log_astroid"),
    "pyvista/pyvista": Spec(_PYTEST, "parse_log_pyvista"),
    "sqlfluff/sqlfluff": Spec(_PYTEST, "parse_log_sqlfluff"),
}
SETS = frozenset({"swe_bench", "swe_gym"})
"""Formats whose rows name no command, so that it follows from the repository."""


def spec_of(task: SweTask) -> Spec | None:
    """The specification of a task whose row has none; None where the row decides or pytest is the default."""
    return SPECS.get(task.repo) if task.source in SETS and not task.test_commands else None


def command(task: SweTask, spec: Spec) -> str:
    """The command with the tests that the row's test patch brings, else with the files that its tests are named after."""
    touched = diffs.touched(task.test_patch) if task.test_patch else []
    files = [path for path in touched if PurePosixPath(path).suffix not in _NO_TESTS]
    files = files or list(dict.fromkeys(name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name))
    if spec.modules:
        files = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
    return " ".join([spec.command, *map(shlex.quote, files)])
