"""Harbor's own runner with its oracle agent on a task with an image: one trial, and twenty at once. No network is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TASK = {
    "task.toml": """\
schema_version = "1.0"
[metadata]
author_name = "x"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 120.0
[environment]
docker_image = "host"
cpus = 4
memory_mb = 512
""",
    "instruction.md": "Write 42 into /tmp/answer.txt.\n",
    "solution/solve.sh": "#!/bin/bash\necho 42 > /tmp/answer.txt\n",
    "tests/test.sh": """\
#!/bin/bash
if [ "$(cat /tmp/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
""",
}


def make_task(folder: Path, **changed: str) -> Path:
    for name, text in {**TASK, **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / "environment").mkdir(exist_ok=True)
    return folder


def rewards(folder: Path, task: Path, *options: str) -> list[float]:
    words = ["run", "-p", str(task), "-a", "oracle", "-e", "holdfast.integrations.harbor:HoldfastEnvironment", "-o", str(folder / "jobs")]
    environment = {**os.environ, "HOME": str(folder), "HARBOR_TELEMETRY": "0"}
    command = [str(Path(sys.executable).with_name("harbor")), *words, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170, env=environment, cwd=folder)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    found = []
    for path in (folder / "jobs").glob("*/*/result.json"):
        trial = json.loads(path.read_text())
        assert trial.get("exception_info") is None, trial["exception_info"]
        found += [float(value) for value in (trial["verifier_result"]["rewards"] or {}).values()]
    assert found, result.stdout[-3000:]
    return found


def test_the_oracle_gets_its_reward(tmp_path: Path) -> None:
    assert rewards(tmp_path, make_task(tmp_path / "task")) == [1.0]


def test_a_wrong_solution_gets_none(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", **{"solution/solve.sh": "#!/bin/bash\necho 41 > /tmp/answer.txt\n"})
    assert rewards(tmp_path, task) == [0.0]


@pytest.mark.timeout(300)
def test_twenty_trials_at_once(tmp_path: Path) -> None:
    assert rewards(tmp_path, make_task(tmp_path / "task"), "-k", "20", "-n", "20") == [1.0] * 20


def test_a_task_with_a_dockerfile_is_built(tmp_path: Path) -> None:
    """Two trials at once: the second one finds the steps of the first."""
    toml = TASK["task.toml"].replace('docker_image = "host"\n', "")
    dockerfile = "FROM host\nCOPY answer /opt/answer\nRUN chmod 600 /opt/answer\nWORKDIR /opt\n"
    solution = "#!/bin/bash\ncp answer /tmp/answer.txt\n"
    files = {"task.toml": toml, "environment/Dockerfile": dockerfile, "environment/answer": "42\n", "solution/solve.sh": solution}
    assert rewards(tmp_path, make_task(tmp_path / "task", **files), "-k", "2", "-n", "2") == [1.0] * 2
