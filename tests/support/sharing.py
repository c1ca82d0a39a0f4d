"""How the suite is divided among workers (`make test` runs two), and which tests must run alone.

Owns the order of the files, the scheduler that hands out whole files, the lock between workers, and the end of a worker that hangs. A
file's tests stay together, so that its fixtures are made once. Tests marked ``alone`` come late and run while no other worker runs a test:
fork bombs, and comparisons of speeds. Loaded by ``tests/conftest.py``; without workers only the order remains.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

LONG = (
    "gateway/placement/test_redis_versions", "session_agent/shell/test_shell_cases", "faults/test_thousand", "kubernetes/test_scale",
    "e2e/test_timeouts", "wire/test_simulation", "e2e/test_shell_suite", "e2e/test_up_end", "e2e/test_up_restarts", "e2e/test_demo",
    "session_agent/commands/test_commands", "session_agent/commands/test_commands_trees", "session_agent/startup/test_shutdown",
    "regressions/test_e2b_1031", "package/", "node/", "faults/", "wire/", "sdk/", "contract/",
)  # fmt: skip
"""Files that start first, the longest first; otherwise the last worker would run them alone. A missing entry only costs time."""
TOGETHER = ("e2b/", "package/")
"""Folders whose files share something that is expensive to create."""
_ALONE = "alone"
_HANG_FACTOR = 2.5
"""A worker ends once a test takes this many times its time limit. The limit raises an exception, once, in whatever code runs at that
moment: a test whose clean-up hangs, or in which a task takes the exception for its own, would otherwise keep the whole run waiting."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_ALONE}: never at the same time as another worker's test, e.g. because it measures or floods")
    config.pluginmanager.register(_Lock(), "holdfast-lock")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Scheduler(), "holdfast-scheduler")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; files with tests marked ``alone`` last, and in them those tests last; otherwise the order of the collection."""
    files_with_alone = {_path(item.nodeid) for item in items if item.get_closest_marker(_ALONE)}

    def rank(item: pytest.Item) -> tuple[int, str, bool]:
        path = _path(item.nodeid)
        if path in files_with_alone:
            return len(LONG) + 1, path, item.get_closest_marker(_ALONE) is not None
        starts = enumerate(LONG)
        return next((at for at, start in starts if path == start or (start.endswith("/") and path.startswith(start))), len(LONG)), "", False

    items.sort(key=rank)


def _path(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")


class _Scheduler:
    """Registered if the plug-in for workers is installed."""

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        class ByFile(LoadScopeScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                path = _path(nodeid)
                return next((folder for folder in TOGETHER if path.startswith(folder)), path)

            def remove_node(self, node: Any) -> str | None:
                """After the end of a worker: its other tests go to other workers; the test that it ran is returned, and has failed.

                As inherited, the test would run again and end the next worker, too, and files that are done would be handed out
                again: a worker that gets one, which is empty, waits for ever.
                """
                files = self.assigned_work[node]
                ran = next((test for tests in files.values() for test, is_done in tests.items() if not is_done), None)
                for tests in files.values():
                    if ran in tests:
                        tests[ran] = True
                self.assigned_work[node] = {file: tests for file, tests in files.items() if not all(tests.values())}
                super().remove_node(node)
                return ran

        config.option.loadscopereorder = False  # the order is ours
        return ByFile(config, log)


class _Lock:
    """A lock for readers and one writer over two files; while a test waits to run alone, no other worker starts a test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Waits outside of the test's time limit, because the wait depends on other tests."""
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        if run is None:
            with _limited(item):
                return (yield)
        folder = Path(tempfile.gettempdir()) / f"holdfast-tests-{run}"
        folder.mkdir(exist_ok=True)
        with (folder / "door").open("a") as door, (folder / "room").open("a") as room:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker(_ALONE) else fcntl.LOCK_SH)
            fcntl.flock(door, fcntl.LOCK_UN)
            with _limited(item):
                return (yield)


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Generator[None]:
    """Print every thread's stack and end the process if the test and its fixtures are not done long after their time limit."""
    marker = item.get_closest_marker("timeout")
    given = marker and (marker.kwargs.get("timeout") or (marker.args and marker.args[0]))
    limit_s = float(given or item.config.getoption("timeout", None) or item.config.getini("timeout") or 0)
    if limit_s > 0 and not item.config.getoption("usepdb"):
        faulthandler.dump_traceback_later(limit_s * _HANG_FACTOR, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
