"""Which tests belong to which target: `make test` runs the quick ones, `make test-all` also the slow ones, `make soak` the longest.

Owns the two lists below, by file or folder; what is in neither is quick. Loaded by ``tests/conftest.py``, which adds the markers ``slow``
and ``soak``.
"""

from __future__ import annotations

import pytest

SLOW = (
    "cli/test_start",
    "docker/",
    "e2e/test_concurrent",
    "e2e/test_demo",
    "e2e/test_idle",
    "e2e/test_isolation",
    "e2e/test_large_arguments",
    "e2e/test_other_users",
    "e2e/test_timeouts",
    "e2e/test_up",
    "faults/",
    "gateway/test_groups_model",
    "gateway/test_images_real",
    "gateway/test_placement_cluster",
    "gateway/test_pools",
    "gateway/test_redis_cluster_away",
    "gateway/test_redis_versions",
    "infra/test_acceptance",
    "infra/test_manifests",
    "infra/test_smoke",
    "kubernetes/",
    "loadtest/test_runs",
    "node/",
    "package/",
    "recipes/harness/test_program",
    "recipes/miniature/test_repair",
    "recipes/pipeline/test_commands",
    "recipes/pipeline/test_documentation",
    "recipes/pipeline/test_managed",
    "recipes/proxy/test_relay",
    "recipes/swe/test_commands",
    "recipes/swe/test_factory",
    "recipes/swe/test_job",
    "regressions/",
    "sdk/test_e2e_watch",
    "session_agent/test_commands_trees",
    "session_agent/test_shutdown",
    "wire/test_simulation",
)
"""Seconds each: the machine's own services, faults, images, clusters. The shell suite, the core, the contracts and the chain are quick."""
QUICK = (
    "faults/test_cut_connections",
    "faults/test_history",
    "kubernetes/test_manifest",
    "kubernetes/test_conformance",
    "node/test_chain",
    "node/test_isolation",
    "node/test_lifecycle",
)
"""What of the slow folders proves the chain, and is run always."""
SOAK = (
    "faults/test_stalled_readers",
    "faults/test_thousand",
    "kubernetes/test_scale",
)
"""Minutes of many sandboxes, and of clients that stop reading."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out of `make test`; `make test-all` runs it")
    config.addinivalue_line("markers", "soak: a thousand sandboxes, minutes of load; `make soak` runs it")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        if path in SOAK:
            item.add_marker("soak")
        elif path not in QUICK and any(path == name or (name.endswith("/") and path.startswith(name)) for name in SLOW):
            item.add_marker("slow")
