"""mini-swe-agent with ``HoldfastEnvironment``, and with its own docker environment on ``holdfast-docker``: the same behaviour by both
paths.

The behaviours are those that the project's own tests of its docker environment hold. Its file of tests runs too where
``HOLDFAST_HARNESS_SOURCES`` names a folder with a clone (``mini-swe-agent``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient, SandboxLostError, SandboxNotFoundError
from minisweagent.environments import get_environment
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.exceptions import Submitted

BIN = Path(sys.executable).parent
SHIM = str(BIN / "holdfast-docker")
CLASS = "holdfast.integrations.mini.HoldfastEnvironment"
PROMPT_S = 60.0
Make = Callable[..., Any]


@pytest.fixture(params=["class", "shim"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Any] = []

    def create(**options: Any) -> Any:
        config = {"image": "host", "interpreter": ["bash", "-c"], **options}
        config |= {"environment_class": CLASS} if request.param == "class" else {"environment_class": "docker", "executable": SHIM}
        made.append(get_environment(config))
        return made[-1]

    yield create
    for environment in made:
        environment.cleanup()


def run(environment: Any, command: str, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = environment.execute({"command": command}, **options)
    return result


def test_runs_a_command(make: Make) -> None:
    assert run(make(), "echo 'hello world'") == {"output": "hello world\n", "returncode": 0, "exception_info": ""}


def test_gives_both_streams_in_the_order_of_writing(make: Make) -> None:
    assert run(make(), "echo a; echo b >&2; echo c")["output"] == "a\nb\nc\n"


def test_sets_variables(make: Make) -> None:
    environment = make(env={"TEST_VAR": "test_value", "ANOTHER_VAR": "another_value"})
    assert run(environment, "echo $TEST_VAR $ANOTHER_VAR")["output"] == "test_value another_value\n"


def test_forwards_variables_and_lets_set_ones_prevail(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_VAR", "from_host")
    monkeypatch.setenv("CONFLICT_VAR", "from_host")
    environment = make(env={"CONFLICT_VAR": "from_config"}, forward_env=["HOST_VAR", "CONFLICT_VAR", "NONEXISTENT_VAR"])
    assert run(environment, 'echo "$HOST_VAR $CONFLICT_VAR [$NONEXISTENT_VAR]"')["output"] == "from_host from_config []\n"


def test_starts_where_it_is_told(make: Make) -> None:
    environment = make(cwd="/tmp")
    assert run(environment, "pwd")["output"] == "/tmp\n"
    assert run(environment, "pwd", cwd="/usr")["output"] == "/usr\n"


def test_creates_the_working_directory_as_docker_does(make: Make) -> None:
    if isinstance(environment := make(cwd="/new/dir"), DockerEnvironment):
        assert run(environment, "pwd")["output"] == "/new/dir\n"


def test_returns_the_exit_code(make: Make) -> None:
    assert run(make(), "exit 42")["returncode"] == 42


def test_reports_a_time_out_with_the_output_so_far(make: Make) -> None:
    result = run(make(), "echo begun; sleep 60", timeout=3)
    assert (result["returncode"], "timed out" in result["exception_info"]) == (-1, True)
    assert "begun" in result["output"]


def test_ends_with_its_container_timeout(make: Make) -> None:
    environment = make(container_timeout="4s")
    assert run(environment, "echo running")["returncode"] == 0
    end = time.monotonic() + PROMPT_S
    while subprocess.run([SHIM, "exec", environment.container_id, "true"], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < end, "commands that are run in it do not prolong its life"


def test_raises_submitted(make: Make) -> None:
    with pytest.raises(Submitted) as submitted:
        run(make(), "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo answer")
    assert submitted.value.messages[0]["extra"]["submission"] == "answer\n"


def test_deletes_the_sandbox_at_cleanup(make: Make, client: SandboxClient) -> None:
    environment = make()
    environment.cleanup()
    environment.cleanup()
    end = time.monotonic() + PROMPT_S
    while environment.container_id in {info.sandbox_id for info in client.list_sandboxes()}:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_lost_sandbox_raises_and_is_no_result(client: SandboxClient) -> None:
    environment: Any = get_environment({"environment_class": CLASS, "image": "host"})
    client.get_sandbox(environment.container_id).delete()
    with pytest.raises((SandboxLostError, SandboxNotFoundError)):
        run(environment, "true")


def test_plays_a_swe_bench_instance_by_the_runner(tmp_path: Path) -> None:
    """Its runner sets the image of its built-in classes only, so the docker class runs on the shim. The model is its deterministic one."""
    instance = {"instance_id": "local__demo-1", "problem_statement": "Fix it.", "image_name": "host"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(instance) + "\n")
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/patch"
    outputs = [
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": command}]}}
        for command in ("echo 'diff --git a/x b/x' > /tmp/patch", submit)
    ]
    config = {
        "model": {"model_class": "deterministic", "model_name": "deterministic", "outputs": outputs, "cost_per_call": 0.0},
        "environment": {"environment_class": "docker", "cwd": "/tmp", "interpreter": ["bash", "-c"]},
        "agent": {"step_limit": 5, "cost_limit": 1.0, "system_template": "s", "instance_template": "{{task}}"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    words = ["-m", "minisweagent.run.benchmarks.swebench", "--subset", str(tmp_path), "--split", "train", "-o", str(tmp_path / "out")]
    environment = {**os.environ, "MSWEA_DOCKER_EXECUTABLE": SHIM, "HF_HUB_OFFLINE": "1", "BASH_ENV": "/dev/null", "HOME": str(tmp_path)}
    environment |= {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
    result = subprocess.run(
        [sys.executable, *words, "-c", str(tmp_path / "config.yaml"), "-w", "1"],
        env=environment, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    predictions = json.loads((tmp_path / "out" / "preds.json").read_text())
    assert predictions["local__demo-1"]["model_patch"] == "diff --git a/x b/x\n"


def test_the_shim_refuses_by_name_what_it_cannot_do() -> None:
    for words, said in (
        (["build", "--push", "."], "holdfast image save"),
        (["run", "--cap-add", "ALL", "host"], "--cap-add"),
        (["run", "--network", "host", "host", "true"], "none, bridge"),
        (["network", "create", "x"], "network"),
    ):
        result = subprocess.run([SHIM, *words], capture_output=True, text=True, check=False)
        assert result.returncode != 0
        assert said in result.stderr


def test_the_shim_prints_what_harnesses_read(make: Make) -> None:
    environment = make()

    def ask(*words: str) -> str:
        return subprocess.run([SHIM, *words], capture_output=True, text=True, check=True).stdout.strip()

    name = environment.container_id
    assert ask("inspect", "-f", "{{.State.Running}}", name) == "true"
    assert json.loads(ask("inspect", name))[0]["Config"]["Image"] == "host"
    assert name in ask("ps", "-q")
    assert f"{name} running" in ask("ps", "--format", "{{.Names}} {{.State}}")
    assert ask("version", "--format", "{{.Server.Os}}") == "linux"
    assert "ContainersRunning" in ask("info")
    assert "host" in ask("images", "--format", "{{.Repository}}") or ask("images") != ""


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("mini.md")


@pytest.mark.skipif(not os.environ.get("HOLDFAST_HARNESS_SOURCES"), reason="HOLDFAST_HARNESS_SOURCES names no folder with a clone")
@pytest.mark.parametrize("path", ["class", "shim"])
def test_the_projects_own_tests(path: str, tmp_path: Path, client: SandboxClient) -> None:
    with client.create_sandbox("host") as sandbox:
        sandbox.snapshot("python:3.11")  # the image that they name
    source = Path(os.environ["HOLDFAST_HARNESS_SOURCES"]) / "mini-swe-agent" / "tests" / "environments" / "test_docker.py"
    (tmp_path / "docker").symlink_to(SHIM)
    (tmp_path / "test_docker.py").write_text(source.read_text())
    if path == "class":
        replace = "import minisweagent.environments.docker as module\nfrom holdfast.integrations import mini\n"
        replace += "module.DockerEnvironment = mini.HoldfastEnvironment\nmodule.DockerEnvironmentConfig = mini.HoldfastEnvironmentConfig\n"
        (tmp_path / "conftest.py").write_text(replace)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "BASH_ENV": "/dev/null"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not podman", str(tmp_path / "test_docker.py")]
    result = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170)
    assert result.returncode == 0, result.stdout[-4000:]
    assert "11 passed" in result.stdout
