"""`holdfast cost`: known results, and errors about unusable input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast.cli.app import run as main
from holdfast.cli.subcommands.cost import Fleet, Node, Overhead, compute

GIB = 1 << 30
NONE = Overhead(0, 0, 0)


@pytest.fixture
def cost(capsys: pytest.CaptureFixture[str]) -> object:
    def run(*words: str) -> dict[str, object]:
        assert main(["cost", "--json", *words]) == 0
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    return run


def test_the_published_cluster_without_overhead_costs_what_was_published() -> None:
    """Sixteen nodes for 128 sandboxes of 2 vCPU and 8 GiB and one for the service: $0.109 per sandbox-hour, $0.022 on spot nodes."""
    fleet = Fleet(sandboxes=128, cpu=2, memory=8 * GIB, rate=0)
    for price, published in ((0.824, 0.109), (0.165, 0.022)):
        found = compute(fleet, Node(16, 64 * GIB, 250, price), price, NONE)
        assert (found.per_node, found.nodes, found.service_nodes) == (8, 16, 1)
        assert round(found.usd_per_sandbox_hour, 3) == published


@pytest.mark.parametrize(
    ("fleet", "node", "overhead", "expected"),
    [
        (Fleet(100, 0.5, GIB, 0), Node(16, 64 * GIB, 110, 1.0), NONE, (32, "cpu", 4)),
        (Fleet(100, 0.1, GIB, 0), Node(16, 64 * GIB, 110, 1.0), NONE, (64, "memory", 2)),
        (Fleet(100, 0.1, GIB, 0), Node(16, 64 * GIB, 110, 1.0), Overhead(1 << 20, 0, 0), (63, "memory", 2)),
        (Fleet(221, 0.1, GIB // 8, 0), Node(16, 64 * GIB, 110, 1.0), NONE, (110, "pods", 3)),
        (Fleet(3, 0.1, GIB, 0), Node(0.3, 64 * GIB, 110, 1.0), NONE, (3, "cpu", 1)),
    ],
)
def test_the_scarcest_resource_bounds_the_sandboxes_of_a_node(
    fleet: Fleet, node: Node, overhead: Overhead, expected: tuple[int, str, int]
) -> None:
    found = compute(fleet, node, node.price, overhead)
    assert (found.per_node, found.bound, found.nodes) == expected


def test_commands_and_sessions_determine_the_number_of_gateways() -> None:
    node = Node(16, 64 * GIB, 110, 1.0)
    assert compute(Fleet(100, 1, GIB, 0.2), node, 1.0, Overhead()).gateways == 2, "at least two, because one may be replaced"
    assert compute(Fleet(100_000, 1, GIB, 1), node, 1.0, Overhead(0, 0, 90e-6)).gateways == 18
    assert compute(Fleet(100_000, 1, GIB, 0), node, 1.0, Overhead(0, 100 << 10, 0)).gateways == 10


def test_nodes_can_be_filled_by_use_instead_of_limits(cost: object) -> None:
    by_limits = cost("--sandboxes", "1000")  # type: ignore[operator]
    by_use = cost("--sandboxes", "1000", "--cpu-used", "0.2", "--memory-used", "400m")  # type: ignore[operator]
    assert by_limits["per_node"] == 7, "with the agent's memory, eight sandboxes of 8 GiB do not fit into 64 GiB"
    assert by_use["per_node"] == 64
    assert by_use["usd_per_sandbox_hour"] < by_limits["usd_per_sandbox_hour"] / 7
    more = cost("--sandboxes", "1000", "--cpu-used", "9", "--memory-used", "400m")  # type: ignore[operator]
    assert more["per_node"] == 8, "a sandbox cannot use more than its limit"


def test_the_overhead_is_read_from_a_bench_file(cost: object, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"figures": [{"id": "P8", "value": 1024}, {"id": "P1", "value": 1}]}))
    assert cost("-m", "1g", "--cpu", "100m", "--measured", str(path))["per_node"] == 32  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cpu", "32"], "no sandbox fits on a node: the node has too little cpu"),
        (["--memory", "much"], "--memory must be a size in bytes"),
        (["--cpu", "0"], "--cpu must be a number of cores above 0"),
        (["--sandboxes", "0"], "--sandboxes must be a whole number of at least 1"),
        (["--sandboxes", "1.5"], "--sandboxes must be a whole number of at least 1"),
        (["--sandboxes", "-3"], "--sandboxes"),
        (["--headroom", "0.5"], "--headroom must be at least 1"),
        (["--measured", "/nowhere/bench.json"], "cannot read /nowhere/bench.json"),
        (["--measured", "/dev/null"], "/dev/null is not a bench.json"),
        (["--node-pods", "0"], "--node-pods must be at least 1"),
        (["IMAGE"], "IMAGE"),
    ],
)
def test_unusable_input_is_refused(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *words]) == 2
    assert expected in capsys.readouterr().err


def test_the_text_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"]) == 0
    report = capsys.readouterr().out
    assert "7 sandboxes fit on a node, limited by memory: 128 sandboxes need 19 nodes" in report
    assert "E2B, Daytona $0.230" in report
    assert "Modal $0.335" in report
