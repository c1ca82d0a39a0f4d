"""Locust as `make load` starts it, on the real stack: every user class, an exceeded threshold, two workers, a killed run.

Each run has its own run id, so that sandboxes of other tests on the same stack are not counted.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from holdfast import SandboxClient
from holdfast_server.embed import free_port

from loadtest import growth
from tests.support.stack import Stack, processes_of
from tests.support.until import until

pytestmark = pytest.mark.requires("namespaces", "redis")
QUICK = ["--think-s", "0.2", "--turns", "3", "--lease-s", "10", "--stream-bytes", str(1 << 20)]
NAMES = {
    "EpisodeUser": {"create", "first command", "time to ready", "open shell", "shell command", "delete"},
    "ChurnUser": {"create", "first command", "time to ready", "one-off command", "delete"},
    "OneOffUser": {"create", "first command", "time to ready", "REST command"},
    "FileMoverUser": {"create", "first command", "time to ready", "upload", "download"},
    "TypistUser": {"create", "first command", "time to ready", "open terminal", "key to screen"},
    "SlowReaderUser": {"create", "first command", "time to ready", "open shell", "slow read", "beside a slow read"},
    "OrchardUser": {
        *("create", "first command", "time to ready", "delete"),
        *("Orchard python version", "Orchard ls", "Orchard os-release", "Orchard login shell"),
    },
}


def load(reports: Path, *arguments: str) -> list[str]:
    """The command line of a run of two users for ten seconds; ``arguments`` come later and override it."""
    return [sys.executable, "-m", "loadtest", "--users", "2", "--duration", "10", "--reports", str(reports), *QUICK, *arguments]


def run(stack: Stack, reports: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output."""
    ended = subprocess.run(
        load(reports, *arguments), env=stack.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150
    )
    return ended.returncode, ended.stdout


def rows(reports: Path) -> dict[str, dict[str, str]]:
    """Locust's CSV of statistics, by name."""
    with (reports / "load_stats.csv").open(newline="") as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


def sandboxes(stack: Stack, run_id: str) -> list[str]:
    with SandboxClient(stack.url, stack.key) as client:
        return [record.sandbox_id for record in client.list_sandboxes({"load-run": run_id}) if record.status not in ("deleted", "failed")]


@pytest.mark.parametrize("user", NAMES)
def test_each_user_class_for_ten_seconds(stack: Stack, tmp_path: Path, user: str) -> None:
    status, output = run(stack, tmp_path, user, "--run-id", f"one-{user}")
    assert status == 0, output
    found = rows(tmp_path)
    assert found.keys() - {"Aggregated"} == NAMES[user], output
    assert {name: row["Failure Count"] for name, row in found.items() if row["Failure Count"] != "0"} == {}
    assert all(int(found[name]["Request Count"]) > 0 for name in NAMES[user])
    assert not sandboxes(stack, f"one-{user}")
    page = (tmp_path / "load.html").read_text()
    assert [name for name in NAMES[user] if name not in page] == []


def test_an_exceeded_limit_ends_with_status_1(stack: Stack, tmp_path: Path) -> None:
    status, output = run(stack, tmp_path, "ChurnUser", "--max-ms", "one-off command:p50:0.001,create:p99:1e9,no such name:p50:5")
    assert status == 1
    assert re.search(r"threshold: 'one-off command' p50 is \S+ ms: more than 0\.001", output), output
    assert "threshold: 'no such name' has a limit and was never measured" in output
    assert "'create'" not in output


def test_a_service_that_cannot_be_reached_fails_the_run(stack: Stack, tmp_path: Path) -> None:
    environment = {**stack.environment(), "HOLDFAST_URL": f"http://127.0.0.1:{free_port()}"}
    ended = subprocess.run(load(tmp_path, "ChurnUser"), env=environment, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 1, ended.stderr
    assert "the run cannot begin" in ended.stderr


def test_a_refused_request_is_no_infrastructure_fault(stack: Stack, tmp_path: Path) -> None:
    status, output = run(stack, tmp_path, "ChurnUser", "--duration", "10", "--image", "no such image")
    assert status == 1
    assert "0 infrastructure faults" in output, output
    assert "requests failed through the load test's own fault" in output
    assert "CallerFault: " in (tmp_path / "load_failures.csv").read_text()


def test_a_sandbox_that_is_left_behind_fails_the_run(stack: Stack, tmp_path: Path) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("python:3.12", labels={"load-run": "left"}):
        status, output = run(stack, tmp_path, "OneOffUser", "--duration", "3", "--run-id", "left")
    assert status == 1
    assert "threshold: 1 sandboxes are left behind" in output


def test_the_counts_of_two_workers_are_added(stack: Stack, tmp_path: Path) -> None:
    port = str(free_port())
    status, output = run(
        *(stack, tmp_path, "ChurnUser", "--users", "4", "--workers", "2", "--run-id", "pair"),
        *("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port),
    )
    assert status == 0, output
    assert "2 workers" in output or output.count("reported as ready") == 2, output
    assert int(rows(tmp_path)["create"]["Request Count"]) >= 4
    assert not sandboxes(stack, "pair")


def test_killed_locust_leaves_nothing_behind(stack: Stack) -> None:
    arguments = ["--headless", "--users", "2", "--spawn-rate", "2", *QUICK, "--run-id", "killed", "EpisodeUser"]
    with subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", *arguments],
        env=stack.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as locust:
        try:
            until(lambda: len(sandboxes(stack, "killed")) == 2, deadline_s=60, what="two sandboxes")
        finally:
            os.kill(locust.pid, signal.SIGKILL)
    until(lambda: not sandboxes(stack, "killed"), deadline_s=60, what="the group's lease to end")


def run_alone(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run without an address, and wait until the run's own stack has ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    words = load(data / "reports", "OneOffUser", "--duration", "5", *arguments)
    ended = subprocess.run(words, env={**environment, "HOLDFAST_DATA": str(data)}, capture_output=True, text=True, timeout=150)
    until(lambda: not processes_of(data / "load"), deadline_s=60, what="the stack to end")
    return ended


def test_without_an_address_the_run_starts_its_own_stack(tmp_path: Path) -> None:
    ended = run_alone(tmp_path, "--sample-s", "0.5")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(rows(tmp_path / "reports")["REST command"]["Request Count"]) > 0
    measures: dict[str, set[str]] = defaultdict(set)
    for _, process, _, measure, value in growth.load(tmp_path / "reports" / "footprint.csv"):
        if value or measure == "mounts":
            measures[process].add(measure)
    each = {"memory_bytes", "descriptors", "threads", "mounts"}
    with_tasks = each | {"tasks"}
    stack = {"sandboxes", "spares", "files", "namespaces", "cgroups"}
    assert measures.pop("gateway") == with_tasks | {"creates_total"}
    assert measures.pop("controller") == with_tasks
    assert measures.pop("stack") == stack
    assert measures == dict.fromkeys(("supervisor", "locust", "redis", "node", "zygote", "agent"), each)


def test_a_soak_that_cannot_be_judged_fails(tmp_path: Path) -> None:
    ended = run_alone(tmp_path, "--shape", "soak")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "threshold: the run was too short to judge growth" in ended.stdout
    assert "left behind" not in ended.stdout


@pytest.mark.parametrize("shape", ["ramp", "step", "spike", "soak"])
def test_each_shape_changes_the_number_of_users(stack: Stack, tmp_path: Path, shape: str) -> None:
    status, output = run(stack, tmp_path, "OneOffUser", "--users", "5", "--shape", shape)
    assert status == 0, output
    counts = [int(count) for count in re.findall(r"Shape test updating to (\d+) users", output)]
    assert max(counts) == 5
    assert counts == sorted(counts) or shape == "spike"
    assert len(counts) > 1 or shape == "soak"
    assert shape != "spike" or (counts[0], counts[-1]) == (1, 1)
