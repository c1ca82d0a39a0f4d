"""`make acceptance`: when it reports a step as passed, failed or not run, and that each step can fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast import AuthenticationError, ServiceUnavailableError
from holdfast_server.embed import free_port

from infra.scripts.acceptance import burst, inside
from infra.scripts.acceptance.__main__ import STEPS, AcceptanceTest, parse
from infra.scripts.acceptance.__main__ import main as acceptance
from infra.scripts.acceptance.outcome import NotRunError, Result, StepError, passed, take, verdict
from infra.scripts.deploy.kubectl import DeployError, Kubectl
from infra.scripts.smoke import episodes
from tests.support.requires import requires
from tests.support.stack import Stack

HERE = requires("namespaces", "redis", "bash")


def result(word: Any) -> Result:
    return Result("a step", word, "", 0.1)


def test_without_a_passed_step_acceptance_fails() -> None:
    assert not passed([])
    assert not passed([result("not run")])
    assert passed([result("not run"), result("passed")])
    assert not passed([result("passed"), result("failed")])
    assert verdict([result("not run")]) == "acceptance: FAILED; 0 passed, 0 failed, 1 not run"


@pytest.mark.parametrize(
    ("error", "word", "detail"),
    [
        (NotRunError("no way"), "not run", "no way"),
        (StepError("wrong"), "failed", "wrong"),
        (RuntimeError("a bug"), "failed", "RuntimeError: a bug"),
        (None, "passed", "well"),
    ],
)
def test_every_outcome_of_a_step_is_reported(error: Exception | None, word: str, detail: str) -> None:
    def step() -> dict[str, Any]:
        if error is not None:
            raise error
        return {"detail": "well", "n": 1}

    found = take("x", step)
    assert (found.word, found.detail) == (word, detail)
    assert found.figures == ({"n": 1} if error is None else {})


@pytest.mark.parametrize("arguments", [["--steps", ""], ["--steps", "smoke,nonsense"], ["--count", "0"], ["--sessions", "0"]])
def test_an_acceptance_test_without_steps_or_sandboxes_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_the_time_that_holdfast_adds_to_a_burst_is_bounded() -> None:
    assert burst.compare([1.0, 2.0, 14.0], [3.0, 5.0, 8.0])["last_s"] == 14.0
    with pytest.raises(StepError, match="long after the last bare pod"):
        burst.compare([1.0, 50.0], [3.0, 8.0])


def test_a_burst_without_enough_capacity_is_not_run() -> None:
    class Full:
        def __init__(self, code: str) -> None:
            self.code = code

        def create_sandbox(self, **_: Any) -> None:
            raise ServiceUnavailableError(self.code, "1 Insufficient cpu")

    options = {"cpu": "100m"}
    with pytest.raises(NotRunError, match=r"no room for 3 of cpu 100m .*HOLDFAST_CPU_REQUEST_SHARE.*Insufficient"):
        burst.sandboxes(Full("no_capacity"), options, 3)  # type: ignore[arg-type]
    with pytest.raises(ServiceUnavailableError):
        burst.sandboxes(Full("runtime_unavailable"), options, 3)  # type: ignore[arg-type]


class PodsOfSandboxes:
    """A fake kubectl that knows a sandbox's pod and the pod that is created from it."""

    def __init__(self, root: str, ready: bool) -> None:
        self.root, self.ready = root, ready
        self.applied: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    def get(self, *_: str) -> dict[str, Any]:
        container = {"name": "sandbox", "securityContext": {"capabilities": {"drop": ["ALL"]}}}
        return {"items": [{"metadata": {"name": "hf-sb-1"}, "spec": {"nodeName": "a", "hostUsers": False, "containers": [container]}}]}

    def apply(self, manifests: list[dict[str, Any]]) -> None:
        self.applied += manifests

    def run(self, *words: str) -> str:
        if words[0] == "delete":
            self.deleted.append(words[2])
        if words[0] == "wait" and not self.ready:
            raise DeployError("timed out")
        return f"{self.root}\n" if words[0] == "exec" else ""


@pytest.mark.parametrize(
    ("root", "ready", "error"), [("read-only", True, None), ("writable", True, StepError), ("read-only", False, DeployError)]
)
def test_a_pod_with_a_read_only_root_must_be_ready_and_refuse_writes(root: str, ready: bool, error: type[Exception] | None) -> None:
    class Client:
        def create_sandbox(self, **_: Any) -> Any:
            return contextlib.nullcontext(SimpleNamespace(id="sb-1"))

    cluster = PodsOfSandboxes(root, ready)
    with pytest.raises(error) if error else contextlib.nullcontext():
        inside.read_only(Client(), cluster, {"image": "busybox", "ready_timeout_s": 60.0})  # type: ignore[arg-type]
    (pod,) = cluster.applied
    assert pod["spec"]["containers"][0]["securityContext"] == {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    assert "nodeName" not in pod["spec"]
    assert "labels" not in pod["metadata"], "with labels the controller would take it for a sandbox and delete it"
    assert cluster.deleted == [pod["metadata"]["name"]]


@pytest.mark.parametrize("broken", [None, 2], ids=["all answer", "one does not"])
def test_a_burst_keeps_its_sandboxes_until_the_last_is_ready_and_deletes_all(broken: int | None) -> None:
    lock, alive, most, number = threading.Lock(), set[int](), 0, itertools.count()

    class Sandbox:
        def __init__(self) -> None:
            nonlocal most
            self.number = next(number)
            with lock:
                alive.add(self.number)
                most = max(most, len(alive))

        def exec(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(stdout="" if self.number == broken else "up\n")

        def delete(self) -> None:
            with lock:
                alive.remove(self.number)

    client = SimpleNamespace(create_sandbox=lambda **_: Sandbox())
    if broken is None:
        assert len(burst.sandboxes(client, {}, 8)) == 8  # type: ignore[arg-type]
    else:
        with pytest.raises(StepError, match="a sandbox answered ''"):
            burst.sandboxes(client, {}, 8)  # type: ignore[arg-type]
    assert most == 8
    assert alive == set()


@pytest.mark.parametrize(("share", "reserved"), [({}, "100m"), ({"HOLDFAST_CPU_REQUEST_SHARE": "0.25"}, "25m")])
def test_bare_pods_reserve_the_same_as_sandboxes(share: dict[str, str], reserved: str) -> None:
    class Cluster:
        def get(self, what: str, *_: str) -> dict[str, Any]:
            assert what == "configmap/holdfast-settings"
            return {"data": share}

    pod = burst._pod("one", "run", {"cpu": "100m", "memory": "64Mi", "image": "busybox"}, burst._request_share(Cluster()))  # type: ignore[arg-type]
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": reserved, "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}


KUBECTL = """#!{python}
import json, sys
words = [word for word in sys.argv[1:]]
with open({folder!r} + "/said", "a") as file:
    print(*words, file=file)
if words[0] in {refused!r}:
    sys.exit("refused")
if words[0] == "get" and words[1].startswith("deployment/"):
    print(json.dumps({{"spec": {{"template": {{"spec": {{"containers": [{{"image": "x"}}]}}}}}}}}))
elif words[0] == "get" and "name" in words:
    print("pod/a")
elif words[0] == "get":
    print(json.dumps({{"status": {{"phase": "Running"}}}}))
elif words[0] == "logs":
    print({logs!r})
elif words[0] == "apply":
    sys.stdin.read()
"""


def kubectl(folder: Path, logs: str = "", refused: tuple[str, ...] = ()) -> str:
    path = folder / "kubectl"
    path.write_text(KUBECTL.format(python=sys.executable, folder=str(folder), logs=logs, refused=refused))
    path.chmod(0o755)
    return str(path)


def report(count: int, **more: Any) -> str:
    steps = {step: {"n": count, "p50_ms": 1.0, "max_ms": 2.0} for step in episodes.WORK_STEPS}
    return "at work\n" + json.dumps({"failed": 0, "failures": [], "steps": steps, **more})


@pytest.mark.parametrize(
    ("logs", "refused", "word"),
    [
        (report(2), (), "passed"),
        (report(1), (), "failed"),
        (report(2, failed=1, failures=["the count: ('3', 0) instead of ('2', 0)"]), (), "failed"),
        ("", (), "failed"),
        (report(2).removeprefix("at work\n"), (), "failed"),
        (report(2), ("delete",), "failed"),
        (report(2), ("rollout",), "failed"),
        (report(2), ("exec", "wait"), "failed"),
    ],
    ids=["clean", "one session missing", "a lost command", "no report", "never started", "nothing killed", "none restarted", "not stopped"],
)
def test_a_fault_passes_only_if_all_sessions_continued(
    logs: str, refused: tuple[str, ...], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra.scripts.acceptance import __main__ as module

    monkeypatch.setattr(module, "_AT_WORK_S", 0.0)
    program = kubectl(tmp_path, logs, refused)
    acceptance = AcceptanceTest(parse(["--kubectl", program, "--api-key", "k", "--sessions", "2"]), Kubectl(program))
    acceptance.take("fault", lambda: acceptance.under("k", acceptance.faults()["controllers killed"]))
    assert acceptance.results[0].word == word, acceptance.results


@pytest.mark.parametrize(("stays", "word"), [(2, "passed"), (1000, "failed")], ids=["gone soon", "left behind"])
def test_a_step_that_leaves_a_pod_behind_fails(stays: int, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from infra.scripts.acceptance import __main__ as module

    monkeypatch.setattr(module, "_LEFT_S", 0.5)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    looks = itertools.count()

    class Cluster(Kubectl):
        def run(self, *arguments: str, text: str | None = None) -> str:
            """A pod of another owner is there all the time; that of the step from the second look on."""
            number = next(looks) // 2
            return "pod/other\n" + ("pod/hf-left\n" if "sandbox" in str(arguments) and 1 <= number <= stays else "")

    acceptance = AcceptanceTest(parse(["--api-key", "k"]), Cluster())
    acceptance.take("step", lambda: acceptance.leaving_nothing(lambda: {"n": 1}))
    assert acceptance.results[0].word == word, acceptance.results
    assert ("pod/hf-left" in acceptance.results[0].detail) is (word == "failed")


def test_failed_sessions_are_reported_rather_than_the_completed_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen when pods of sandboxes were deleted: kubectl's "cannot exec into a container in a completed pod" hid the reason."""
    from infra.scripts.acceptance import __main__ as module

    monkeypatch.setattr(module, "_AT_WORK_S", 0.0)
    program = kubectl(tmp_path, report(2, failed=2, failures=["SandboxLostError: it was deleted"]), ("exec",))
    acceptance = AcceptanceTest(parse(["--kubectl", program, "--api-key", "k", "--sessions", "2"]), Kubectl(program))
    acceptance.take("fault", lambda: acceptance.under("k", acceptance.faults()["controllers killed"]))
    assert acceptance.results[0].word == "failed"
    assert "SandboxLostError: it was deleted" in acceptance.results[0].detail


def test_without_a_cluster_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, output = kubectl(tmp_path, refused=("version",)), tmp_path / "acceptance.json"
    assert acceptance(["--kubectl", program, "--api-key", "k", "--output", str(output)]) == 1
    assert "no cluster answers" in capsys.readouterr().out
    assert json.loads(output.read_text())["passed"] is False


def test_steps_that_cannot_run_are_reported_and_do_not_pass(tmp_path: Path) -> None:
    program = kubectl(tmp_path)
    acceptance = AcceptanceTest(parse(["--kubectl", program, "--api-key", "k"]), Kubectl(program))
    acceptance.take("deploy", acceptance.deploy)
    acceptance.take("away", lambda: acceptance.api_away("http://x", "k"))
    assert [one.word for one in acceptance.results] == ["not run", "not run"]
    assert "--api-away" in acceptance.results[1].detail
    assert not passed(acceptance.results)


@HERE
@pytest.mark.parametrize(
    ("more", "status"),
    [
        ([], 0),
        (["--api-key", "hf_" + "0" * 32], 1),
        (["--url", "http://127.0.0.1:{free}"], 1),
        (["--image", "no such image"], 1),
        (["--api-away", "false", "--steps", "faults"], 1),
    ],
    ids=["clean", "a wrong key", "nothing answers", "no image", "the fault does not happen"],
)
def test_on_a_stack_without_a_cluster(
    stack: Stack, more: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps that need no pods, because they use only the SDK, run against the given address."""
    from infra.scripts.acceptance import __main__ as module

    monkeypatch.setattr(module, "_KEY_S", 0)
    output = tmp_path / "acceptance.json"
    options = ["--kubectl", kubectl(tmp_path), "--url", stack.url, "--api-key", stack.key, "--image", "host", "--sessions", "2"]
    arguments = [*options, "--steps", "smoke", "--output", str(output), *(one.format(free=free_port()) for one in more)]
    assert acceptance(arguments) == status, capsys.readouterr().out
    document = json.loads(output.read_text())
    assert document["passed"] is (status == 0)
    assert stack.key not in output.read_text()
    if not more:
        assert [(one["step"], one["word"]) for one in document["steps"]] == [("smoke", "passed")]


def test_the_key_is_known_when_every_gateway_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas behind one address: one knows the key from the start, the other from the tenth connection on."""
    from infra.scripts.acceptance import __main__ as module

    connections = itertools.count()

    class Client(contextlib.nullcontext[Any]):
        def __init__(self, *_: str) -> None:
            super().__init__(self)

        def list_sandboxes(self) -> None:
            if (number := next(connections)) % 2 and number < 10:
                raise AuthenticationError("key_invalid", "the API key of the request is not known")

    monkeypatch.setattr(module, "SandboxClient", Client)
    monkeypatch.setattr("infra.scripts.acceptance.__main__.time.sleep", lambda _: None)
    module._until_known("http://x", "k")
    assert next(connections) >= 10 + module._KNOWN_IN_A_ROW
    monkeypatch.setattr(module, "_KEY_S", -1)
    connections = itertools.count(1)
    with pytest.raises(AuthenticationError):
        module._until_known("http://x", "k")


@HERE
def test_the_outage_of_the_api_server_runs_a_command_during_sessions(stack: Stack, tmp_path: Path) -> None:
    program = kubectl(tmp_path)
    arguments = ["--kubectl", program, "--url", stack.url, "--api-key", stack.key, "--image", "host", "--sessions", "2"]
    acceptance = AcceptanceTest(parse([*arguments, "--api-away", f"touch {tmp_path}/away"]), Kubectl(program))
    acceptance.take("away", lambda: acceptance.api_away(stack.url, stack.key))
    assert acceptance.results[0].word == "passed", acceptance.results
    assert (tmp_path / "away").exists()


def test_every_step_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    help_text = "".join(capsys.readouterr().out.split())
    assert ",".join(STEPS) in help_text
