"""What continuous integration does about tests that failed in the first run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.scripts import rerun_failed
from tests.infra.overlays import TOP

UNSTABLE = """
from pathlib import Path
def test_passes_alone():
    first = not Path("ran").exists()
    Path("ran").touch()
    assert not first
"""


RECORD = "from tests.conftest import pytest_sessionfinish\n"
ABORT = """
def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("test_passes_alone"):
        raise MemoryError
"""


@pytest.fixture(autouse=True)
def _the_suites_record_and_no_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text(RECORD)
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(folder: Path, source: str) -> tuple[int, int]:
    """Exit codes of pytest on ``source`` and of what follows a failed run."""
    (folder / "test_it.py").write_text(source)
    first = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=folder, check=False)
    return first.returncode, rerun_failed.main(folder)


def test_a_test_that_passes_alone_is_listed_as_unstable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, UNSTABLE) == (1, 0)
    assert (
        capfd.readouterr()
        .out.rstrip()
        .endswith("unstable: failed beside others, passed alone; find out why\n   test_it.py::test_passes_alone")
    )


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, UNSTABLE + "def test_fails(): assert False") == (1, 1)


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    first, second = run(tmp_path, "import no_such_module")
    assert first != 0
    assert second != 0


def test_many_failures_are_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_fails(n): assert False"
    assert run(tmp_path, many) == (1, 1)
    assert "not run again: 6 tests failed, more than 5" in capfd.readouterr().err


def test_an_aborted_run_is_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conftest.py").write_text(RECORD + ABORT)
    assert run(tmp_path, UNSTABLE + "def test_never_runs(): assert False") == (3, 1)
    assert "the run was aborted" in capfd.readouterr().err


def test_without_a_run_nothing_is_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rerun_failed.main(tmp_path) == 1
    assert "the run was aborted, or there was none" in capfd.readouterr().err


def test_a_thread_that_never_ends_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun_failed, "_LONGEST_S", 3)
    waits = "    threading.Thread(target=threading.Event().wait, daemon=first).start()\n"
    source = UNSTABLE.replace("    assert", waits + "    assert").replace("from pathlib", "import threading\nfrom pathlib")
    assert run(tmp_path, source) == (1, 1)
