"""Which tests belong to which target: `make test` runs the quick ones, `make test-all` also the slow ones, `make soak` the longest.

Owns the lists below, by file, folder or test; a test in none of them is quick. Loaded by ``tests/conftest.py``, which adds the markers
``slow`` and ``soak``. A slow file is not even imported by ``make test``: each worker would do so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SLOW = (
    "cli/test_start",
    "docker/",
    "e2b/",
    "e2e/test_canaries",
    "e2e/test_concurrent",
    "e2e/test_demo",
    "e2e/test_event_kinds",
    "e2e/test_idle",
    "e2e/test_isolation",
    "e2e/test_large_arguments",
    "e2e/test_other_users",
    "e2e/test_previews_large",
    "e2e/test_timeouts",
    "e2e/test_traces",
    "e2e/test_up",
    "e2e/test_up_end",
    "e2e/test_up_folder",
    "e2e/test_up_restarts",
    "faults/",
    "gateway/use_cases/test_admission::test_a_thousand_creates_at_once_keep_the_runtime_limit_and_starve_no_owner",
    "gateway/placement/test_groups_model",
    "gateway/use_cases/test_images_real",
    "gateway/placement/test_placement_cluster",
    "gateway/controller/test_pools",
    "gateway/placement/test_redis_unreachable",
    "gateway/placement/test_redis_versions",
    "gateway/http/test_unauthenticated_all",
    "infra/test_acceptance",
    "infra/test_alerts",
    "infra/test_manifests",
    "infra/test_sharing",
    "infra/test_smoke",
    "kubernetes/",
    "loadtest/test_runs",
    "node/",
    "package/",
    "page/",
    "recipes/harness/test_program",
    "recipes/miniature/test_repair",
    "recipes/pipeline/test_commands",
    "recipes/pipeline/test_documentation",
    "recipes/pipeline/test_managed",
    "recipes/proxy/test_listening",
    "recipes/swe/test_commands",
    "recipes/swe/test_factory",
    "recipes/swe/test_job",
    "regressions/",
    "sdk/stack/test_e2e_watch",
    "session_agent/commands/test_commands_trees",
    "session_agent/shell/test_shell::test_two_hundred_time_outs",
    "session_agent/shell/test_shell_cases",
    "session_agent/startup/test_shutdown",
    "wire/test_simulation",
)
"""Tests of seconds each: the machine's own services, faults, images, clusters. The core, the contracts, the whole chain and the shell suite
through it are quick; the agent's own run of the same cases is slow."""
QUICK = (
    "faults/test_cut_connections",
    "faults/test_history",
    "kubernetes/pods/test_manifest",
    "kubernetes/test_conformance",
    "node/test_chain",
    "node/test_isolation",
    "node/test_lifecycle",
)
"""Files of slow folders that test the whole chain and run always."""
SOAK = (
    "faults/test_stalled_readers",
    "faults/test_thousand",
    "infra/test_every_alert",
    "gateway/placement/test_many_records",
    "kubernetes/test_scale",
)
"""Tests of minutes with many sandboxes, or with clients that stop reading."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out of `make test`; `make test-all` runs it")
    config.addinivalue_line("markers", "soak: a thousand sandboxes, minutes of load; `make soak` runs it")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py" or not str(config.option.markexpr).startswith("not (slow"):
        return None
    return _marker(_path(str(collection_path.relative_to(config.rootpath)))) is not None or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = _path(item.nodeid.partition("::")[0])
        if marker := _marker(path, getattr(item, "originalname", item.name)):
            item.add_marker(marker)


def _path(file: str) -> str:
    return file.removeprefix("tests/").removesuffix(".py")


def _marker(path: str, test: str = "") -> str | None:
    """The marker of a test, or without one that of all tests of the file."""
    if path in SOAK:
        return "soak"
    of_file = path not in QUICK and any(path == name or (name.endswith("/") and path.startswith(name)) for name in SLOW)
    return "slow" if of_file or f"{path}::{test}" in SLOW else None
