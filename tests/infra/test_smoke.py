"""`make smoke` on a real stack passes when every sandbox has done every step, and fails in every other case."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_server.embed import free_port

from infra.scripts.smoke import episodes
from infra.scripts.smoke.__main__ import judged
from infra.scripts.smoke.__main__ import main as smoke
from tests.support.requires import requires
from tests.support.stack import Stack

HERE = requires("namespaces", "redis", "bash")


@pytest.fixture
def arguments(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    return ["--url", stack.url, "--api-key", stack.key, "--image", "host", "--count", "2", "--ready", "30"]


@HERE
def test_smoke_passes_when_every_sandbox_has_done_every_step(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke(arguments) == 0
    output = capsys.readouterr().out
    assert output.endswith("smoke: passed, 0 failures\n")
    assert all(f"  {step:<14} n=2 " in output for step in episodes.STEPS)


@HERE
def test_sessions_work_until_they_are_stopped(stack: Stack) -> None:
    command = [sys.executable, episodes.__file__, "--image", "host", "--count", "2", "--until-signal"]
    with subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == episodes.AT_WORK
        process.terminate()
        report = json.loads(process.stdout.readline())
    assert process.returncode == 0, report
    assert set(report["steps"]) == set(episodes.WORK_STEPS)


@HERE
@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--api-key", "hf_" + "0" * 32], "AuthenticationError"),
        (["--url", "http://127.0.0.1:{free}"], "0 of 2 sandboxes"),
        (["--image", "no such image"], "create: done by 0 of 2 sandboxes"),
        (["--folder", "/proc/nowhere"], "write 1 MiB: done by 0 of 2 sandboxes"),
        (["--memory", "nonsense"], "create: done by 0 of 2 sandboxes"),
    ],
)
def test_smoke_fails_when_nothing_works(arguments: list[str], more: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = [one.format(free=free_port()) for one in more]
    assert smoke([*arguments, *more]) == 1
    output = capsys.readouterr()
    assert "smoke: failed" in output.out, output
    assert why in output.out


@HERE
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", episodes.STEPS)
def test_smoke_fails_when_one_sandbox_misses_one_step(
    stack: Stack, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when its thread ends silently, as after ``SystemExit``."""
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    timed, exited = episodes.Figures.timed, set[str]()

    def exit_once(figures: episodes.Figures, name: str, work: Any) -> Any:
        if name == step and not exited:
            exited.add(name)
            raise SystemExit
        return timed(figures, name, work)

    monkeypatch.setattr(episodes.Figures, "timed", exit_once)
    assert episodes.main(["--image", "host", "--count", "2"]) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert f"{step}: done by 1 of 2 sandboxes" in report["failures"]


@HERE
@pytest.mark.parametrize("broken", ["run", "exec", "read"])
def test_smoke_fails_on_a_wrong_answer(
    stack: Stack, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    timed = episodes.Figures.timed
    wrong = {"run": "command", "exec": "exec", "read": "read 1 MiB"}[broken]

    def answer_wrongly(figures: episodes.Figures, name: str, work: Any) -> Any:
        answer = timed(figures, name, work)
        if name != wrong:
            return answer
        return bytes(reversed(answer)) if broken == "read" else argparse.Namespace(stdout="43\n", stderr="", exit_code=0)

    monkeypatch.setattr(episodes.Figures, "timed", answer_wrongly)
    assert episodes.main(["--image", "host", "--count", "1"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 1


def complete_report(steps: tuple[str, ...], count: int) -> dict[str, Any]:
    return {"failed": 0, "failures": [], "steps": {step: {"n": count, "p50_ms": 1.0, "max_ms": 1.0} for step in steps}}


@pytest.mark.parametrize("steps", [{}, complete_report(episodes.STEPS[:-1], 2)["steps"], complete_report(episodes.STEPS, 1)["steps"]])
def test_a_report_with_missing_steps_or_sandboxes_fails(steps: dict[str, Any]) -> None:
    """The report of an unpatched smoke test on a cluster that created nothing was ``{"failed": 0, "failures": [], "steps": {}}``."""
    options = argparse.Namespace(count=2, rolling=0)
    assert judged({"failed": 0, "failures": [], "steps": steps}, options)["failed"] > 0
    assert judged(complete_report(episodes.STEPS, 2), options)["failed"] == 0


@pytest.mark.parametrize("rollouts", [None, 0, 2])
def test_smoke_fails_when_rollouts_did_not_happen(rollouts: int | None) -> None:
    options = argparse.Namespace(count=1, rolling=3)
    report = complete_report(episodes.WORK_STEPS, 1) | ({} if rollouts is None else {"rollouts": rollouts})
    assert judged(report, options)["failures"] == [f"{rollouts or 0} of 3 rollouts happened"]
    assert judged({**report, "rollouts": 3}, options)["failed"] == 0


def test_a_timeout_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke(["--url", "http://127.0.0.1:1", "--api-key", "k", "--count", "3", "--timeout", "0"]) == 1
    assert capsys.readouterr().err == "smoke: 3 sandboxes had not done every step within 0 s (--timeout)\n"


def test_a_count_of_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        smoke(["--api-key", "k", "--count", "0"])
    assert "at least 1" in capsys.readouterr().err
    assert episodes.unmet({}, 0, episodes.STEPS)


KUBECTL = """#!{python}
import json, sys
words = sys.argv[1:]
if words[0] == "get" and words[1].startswith("deployment/"):
    print(json.dumps({{"spec": {{"template": {{"spec": {{"containers": [{{"image": "x"}}]}}}}}}}}))
elif words[0] == "get" and "--output" in words and "name" in words:
    print({gateways!r})
elif words[0] == "get":
    print(json.dumps({{"status": {{"phase": "Running"}}}}))
elif words[0] == "logs":
    print({logs!r})
elif words[0] == "apply":
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("logs", "gateways", "rolling", "status", "message"),
    [
        ("", "pod/a", 0, 1, "without a report"),
        ('{"a": "line of a log"}', "pod/a", 0, 1, "without a report"),
        ('{"failed": 0, "failures": [], "steps": {}}', "pod/a", 0, 1, "create: done by 0 of 1 sandboxes"),
        (json.dumps(complete_report(episodes.WORK_STEPS, 1)), "pod/a", 2, 1, "0 of 2 rollouts happened"),
        ("at work\n" + json.dumps(complete_report(episodes.WORK_STEPS, 1)), "", 2, 1, "there is no gateway to restart"),
        ("at work\n" + json.dumps(complete_report(episodes.WORK_STEPS, 1)), "pod/a", 2, 0, "smoke: passed"),
        (json.dumps(complete_report(episodes.STEPS, 1)), "pod/a", 0, 0, "smoke: passed"),
    ],
)
def test_from_inside_a_cluster(
    logs: str, gateways: str, rolling: int, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable, logs=logs, gateways=gateways))
    kubectl.chmod(0o755)
    more = ["--rolling", str(rolling)] if rolling else []
    assert smoke(["--kubectl", str(kubectl), "--api-key", "k", "--in-cluster", *more]) == status
    printed = capsys.readouterr()
    assert message in printed.out + printed.err
