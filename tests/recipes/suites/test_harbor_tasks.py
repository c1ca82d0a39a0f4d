"""Reading tasks in Harbor's format: what each field means, which tasks cannot be run here, and what a reward file may hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_recipes.harbor.job import reward_of
from holdfast_recipes.harbor.tasks import HarborTaskError, Health, digest, read

from tests.recipes.suites.made import SETTINGS, harbor_task

PUBLISHED = """
schema_version = "1.1"
artifacts = []

[task]
name = "terminal-bench/recover-lines"
description = "A description."

[[task.authors]]
name = "A. Author"

[metadata]
difficulty = "easy"
tags = ["coding"]

[verifier]
timeout_sec = 900.0

[agent]
timeout_sec = 1200.0

[environment]
build_timeout_sec = 600.0
docker_image = "registry.example/recover-lines:20260101"
cpus = 2
memory_mb = 4096
storage_mb = 10240
gpus = 0
allow_internet = true
mcp_servers = []

[verifier.env]
KEY = "${KEY:-none}"

[environment.env]
PLACE = "/srv/${PLACE}"

[solution.env]
"""
"""The fields that tasks of Terminal-Bench 2 have, with values of our own."""


def test_the_fields_of_published_tasks(tmp_path: Path) -> None:
    harbor_task(tmp_path, "recover-lines", settings=PUBLISHED)
    (task,) = read(tmp_path, variables={"PLACE": "data"})
    assert (task.task_id, task.image) == ("recover-lines", "registry.example/recover-lines:20260101")
    assert (task.cpu, task.memory_gib, task.disk_mib) == (2.0, 4.0, 10240)
    assert (task.agent_s, task.verifier_s, task.workdir) == (1200.0, 900.0, None)
    assert task.network == {"mode": "internet"}
    assert (task.env, task.verifier_env, task.solution_env) == ({"PLACE": "/srv/data"}, {"KEY": "none"}, {})
    assert task.problem == ""
    assert read(tmp_path / "recover-lines", variables={"PLACE": "data"}) == [task]
    assert task.to_json() == {"format": "harbor", "task_id": "recover-lines", "image": task.image, "digest": task.digest}


@pytest.mark.parametrize(
    ("settings", "files", "why"),
    [
        (SETTINGS.replace('docker_image = "host"', ""), {}, "no docker_image"),
        (SETTINGS, {"environment__docker-compose.yaml": "services: {}\n"}, "compose file"),
        (SETTINGS + '\n[[steps]]\nname = "one"\n', {}, "several steps"),
        (SETTINGS + 'os = "windows"\n', {}, "it is for windows"),
        (SETTINGS + "gpus = 1\n", {}, "accelerator"),
        (SETTINGS.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"'), {}, "environment of their own"),
        (SETTINGS + '\n[environment.env]\nA = "${SECRET}"\n', {}, "--pass-env"),
    ],
)
def test_a_task_that_cannot_be_run_here_says_why(tmp_path: Path, settings: str, files: dict[str, str], why: str) -> None:
    harbor_task(tmp_path, "odd", settings=settings, **files)
    (task,) = read(tmp_path)
    assert why in task.problem


def test_a_variable_of_this_machine_reaches_no_task_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "key of the model")
    harbor_task(tmp_path, "curious", settings=SETTINGS + '\n[environment.env]\nA = "${SECRET}"\n')
    (task,) = read(tmp_path)
    assert task.env == {"A": ""}
    assert "SECRET" in task.problem


@pytest.mark.parametrize(
    ("field", "network"),
    [
        ("", {"mode": "internet"}),
        ("allow_internet = false", {"mode": "none"}),
        ('network_mode = "no-network"', {"mode": "none"}),
        ('network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]', {"mode": "listed", "domains": ["pypi.org"]}),
    ],
)
def test_networks(tmp_path: Path, field: str, network: dict[str, object]) -> None:
    harbor_task(tmp_path, "task", settings=SETTINGS.replace('network_mode = "no-network"', field))
    assert read(tmp_path)[0].network == network


def test_older_sizes_and_health_checks(tmp_path: Path) -> None:
    older = SETTINGS.replace("memory_mb = 256", 'memory = "2G"') + '\n[environment.healthcheck]\ncommand = "true"\ninterval_sec = 0.1\n'
    harbor_task(tmp_path, "task", settings=older)
    (task,) = read(tmp_path)
    assert task.memory_gib == 2
    assert task.health == Health("true", interval_s=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("[task\n", "task.toml|odd"),
        (SETTINGS.replace("256", '"much"'), "task.toml"),
        (SETTINGS.replace("no-network", "some"), "network_mode"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, settings: str, said: str) -> None:
    harbor_task(tmp_path, "odd", settings=settings)
    with pytest.raises(HarborTaskError, match=said):
        read(tmp_path)


def test_a_folder_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(HarborTaskError, match=r"task\.toml"):
        read(tmp_path)


def test_the_digest_is_of_every_file(tmp_path: Path) -> None:
    first, second = harbor_task(tmp_path / "a", "task"), harbor_task(tmp_path / "b", "task")
    assert digest(first) == digest(second)
    (second / "tests" / "more.txt").write_text("")
    assert digest(first) != digest(second)


@pytest.mark.parametrize(
    ("text", "is_json", "reward"),
    [
        ("1\n", False, 1.0),
        ("0.5", False, 0.5),
        ('{"reward": 1, "speed": 0.2}', True, 1.0),
        ('{"a": 1, "b": 0}', True, 0.0),
        ("1", True, 1.0),
    ],
)
def test_rewards(text: str, is_json: bool, reward: float) -> None:
    assert reward_of(text, is_json=is_json) == reward


@pytest.mark.parametrize(
    ("text", "is_json"), [("", False), ("nan", False), ("solved", False), ('{"reward": "1"}', True), ("{}", True), ("[1]", True)]
)
def test_what_is_no_reward(text: str, is_json: bool) -> None:
    with pytest.raises(ValueError, match=r"reward|convert|float"):
        reward_of(text, is_json=is_json)
