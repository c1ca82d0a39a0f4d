"""Fixtures and rules for every test: real servers from `tests.support`, and requirements that are checked before a test runs."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

import infra.scripts  # noqa: F401  before pytest names tests/infra: it takes that package for `infra` where none is imported yet
from tests.support import requires

pytest_plugins = ["tests.support.tiers", "tests.support.sharing", "tests.support.redis_server", "tests.support.stack"]


def pytest_configure(config: pytest.Config) -> None:
    # the same examples in every run, also on a slow machine; `make fuzz` generates new ones
    settings.register_profile("suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
    # new examples in every run, from a seed that `make fuzz` chooses and prints
    settings.register_profile(
        "fuzz", deadline=None, max_examples=1000, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("fuzz" if os.environ.get("HOLDFAST_FUZZ") else "suite")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background: children would inherit the ignored signal
    if (3, 13) <= sys.version_info < (3, 13, 6) and config.option.tbstyle == "auto":
        # the long form reads the arguments of failed coroutines, which ends the process there (CPython issue 125723)
        config.option.tbstyle = "short"
    config.addinivalue_line("markers", "requires(*needs): what the test needs from the machine (tests.support.requires)")
    config.addinivalue_line("markers", "chaos: minutes of faults under load; left out of `make test`")
    config.addinivalue_line("markers", "docker: the differential suite, of an image that takes minutes to build (`make test-docker`)")
    config.addinivalue_line("markers", "recipes_packages: third-party harnesses from npm and PyPI, which take minutes to fetch")
    config.addinivalue_line("markers", "cluster: needs the cluster that KUBECONFIG names (`make test-cluster`)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    requires.enforce(item)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tell ``infra/scripts/rerun_failed.py`` how the run ended: a run that was aborted has failed tests on record, too."""
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("holdfast/exitstatus", int(exitstatus))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark in ("chaos", "cluster", "docker", "recipes_packages", "soak"):
        left_out = [item for item in items if item.get_closest_marker(mark)]
        if left_out and mark not in (config.option.markexpr or ""):
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(mark)]
