"""Rotating the signing secret of a deployment: at every moment each gateway accepts the sandboxes of every other."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest

from gateway.identity.secrets import read_secrets
from infra.scripts.deploy import keys, rotation
from infra.scripts.deploy.__main__ import main as deploy
from infra.scripts.deploy.kubectl import DeployError, Kubectl

State = tuple[str, tuple[str, ...]]


class Cluster(Kubectl):
    """Stores the Secret and records what gateways would read at each restart."""

    __slots__ = ()
    body: dict[str, Any] = {}  # noqa: RUF012 - emptied by the fixture
    restarts: list[State] = []  # noqa: RUF012
    pods: list[str] = []  # noqa: RUF012
    knative: list[bool] = []  # noqa: RUF012
    commands: list[str] = []  # noqa: RUF012
    fail: list[str] = []  # noqa: RUF012

    def state(self) -> State:
        read = {name: base64.b64decode(text).decode() for name, text in self.body["data"].items()}
        return read["secret"], tuple(read.get("other-secrets", "").split())

    def get(self, *arguments: str) -> dict[str, Any] | None:
        match arguments[0]:
            case "secret":
                return self.body or None
            case "pods":
                return {"items": [{"metadata": {"creationTimestamp": at}} for at in self.pods]}
        if not self.knative:
            raise DeployError("the server doesn't have a resource type")
        return {"metadata": {"generation": 7}}

    def run(self, *arguments: str, text: str | None = None) -> str:
        self.commands.append(" ".join(arguments))
        if self.fail and arguments[: len(self.fail)] == tuple(self.fail):
            self.fail.clear()
            raise DeployError("timed out")
        if text:
            values = json.loads(text)["stringData"]
            assert not any(value and value in " ".join(arguments) for value in values.values()), "other users can read a command line"
            self.body["data"].update({name: base64.b64encode(value.encode()).decode() for name, value in values.items()})
        elif arguments[:2] == ("patch", "secret"):
            self.body.setdefault("metadata", {})["annotations"] = json.loads(arguments[-1])["metadata"]["annotations"]
        elif arguments[:3] == ("rollout", "restart", "deployment/holdfast-gateway") or arguments[:2] == ("patch", rotation._KNATIVE):
            self.restarts.append(self.state())
        return ""


@pytest.fixture
def cluster() -> Cluster:
    for collection in (Cluster.body, Cluster.restarts, Cluster.pods, Cluster.knative, Cluster.commands, Cluster.fail):
        collection.clear()
    Cluster.body["data"] = {"keys": "", "secret": base64.b64encode(b"o" * 40).decode()}
    Cluster.restarts.append(("o" * 40, ()))
    return Cluster()


def accept_each_other(restarts: list[State]) -> bool:
    """During each restart, old and new gateways accept each other's current secret, and the new ones keep every former secret."""
    pairs = itertools.pairwise(restarts)
    return all(a[0] in (b[0], *b[1]) and b[0] in (a[0], *a[1]) and {a[0], *a[1]} <= {b[0], *b[1]} for a, b in pairs)


def test_gateways_before_and_after_each_restart_accept_each_other(cluster: Cluster) -> None:
    rotation.rotate(cluster, 60, print)
    assert accept_each_other(cluster.restarts)
    current, others = cluster.state()
    assert (current != "o" * 40, others) == (True, ("o" * 40,))
    assert len(current) >= 32
    assert not accept_each_other([("o" * 40, ()), (current, ("o" * 40,))]), "with a single restart they would not"


@pytest.mark.parametrize("where", [("rollout", "restart"), ("rollout", "status"), ("patch", "secret", keys.KEYS)])
def test_an_interrupted_rotation_can_be_continued(cluster: Cluster, where: tuple[str, ...]) -> None:
    cluster.fail.extend(where)
    with pytest.raises(DeployError):
        rotation.rotate(cluster, 60, print)
    with pytest.raises(DeployError, match=r"nothing to finish|interrupted"):
        rotation.finish(cluster, 60, print)
    rotation.rotate(cluster, 60, print)
    assert accept_each_other(cluster.restarts)


def test_the_former_secret_is_kept_while_a_sandbox_needs_it(cluster: Cluster) -> None:
    rotation.rotate(cluster, 60, print)  # the time of this rotation must not count for the next
    cluster.fail.extend(("rollout", "status"))
    with pytest.raises(DeployError):
        rotation.rotate(cluster, 60, print)
    with pytest.raises(DeployError, match="interrupted"):
        rotation.finish(cluster, 60, print)
    rotation.rotate(cluster, 60, print)
    cluster.pods.append("2020-01-01T00:00:00Z")
    with pytest.raises(DeployError, match="1 sandboxes were created with a former secret"):
        rotation.finish(cluster, 60, print)
    assert cluster.state()[1]
    cluster.pods[:] = ["2999-01-01T00:00:00Z"]
    rotation.finish(cluster, 60, print)
    assert cluster.state()[1] == ()
    with pytest.raises(DeployError, match="nothing to finish"):
        rotation.finish(cluster, 60, print)


def test_replacing_a_leaked_secret_revokes_it_at_once(cluster: Cluster) -> None:
    rotation.rotate(cluster, 60, print)
    before = {cluster.state()[0], *cluster.state()[1]}
    rotation.replace(cluster, 60, print)
    current, others = cluster.state()
    assert (current in before, others) == (False, ())


def test_knative_gateways_are_restarted_by_a_new_revision(cluster: Cluster) -> None:
    cluster.knative.append(True)
    rotation.rotate(cluster, 60, print)
    assert accept_each_other(cluster.restarts)
    assert not any("deployment/holdfast-gateway" in line for line in cluster.commands)
    assert any("observedGeneration}=7" in line for line in cluster.commands)


def test_unfinished_rotations_are_limited_and_gateways_read_the_secret(cluster: Cluster, tmp_path: Any) -> None:
    for _ in range(3):
        rotation.rotate(cluster, 60, print)
    with pytest.raises(DeployError, match="not finished"):
        rotation.rotate(cluster, 60, print)
    for name in ("secret", "other-secrets"):
        (tmp_path / name).write_bytes(base64.b64decode(cluster.body["data"][name]))
    own, others = cluster.state()
    assert read_secrets(tmp_path / "secret", tmp_path / "other-secrets") == (own, *others)


def test_without_a_deployment_every_step_is_refused(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.body.clear()
    for step in (rotation.rotate, rotation.finish, rotation.replace):
        with pytest.raises(DeployError, match="deploy first"):
            step(cluster, 60, print)
    with pytest.raises(SystemExit):
        deploy(["rotate-secret", "--finish", "--now"])
    assert "not allowed with" in capsys.readouterr().err
