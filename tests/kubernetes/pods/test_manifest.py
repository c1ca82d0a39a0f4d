"""A pod's manifest is a pure function: golden files for each profile, refused options, and the pod security standard it needs.

`HOLDFAST_GOLDEN=write` writes the files again; review the change.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.option_fields import read_options
from gateway.model.options import AllowedRange, Egress, Options, Port, Toleration, Volume
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.names import label_value, pod_name
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.status import read_pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.conformance.runtimes import order
from tests.support.kube.objects import RefusedError
from tests.support.kube.rules import check_pod

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = KubernetesSettings(bundle_image="registry.example/holdfast/bundle:1")
RICH = replace(
    PLAIN,
    allow_root=True,
    shared=(
        *("claim/*", "secret/token", "config/*", "service-account/builder", "pull-secret/regcred"),
        *("priority/*", "runtime/kata", "toleration/spot", "toleration/team-*", "node/disk", "toleration/node-role.kubernetes.io/edge"),
    ),
    pids_limit=4096,
    node_selector=(("pool", "sandboxes"),),
    tolerations=("sandboxes",),
    pull_secrets=("mirror",),
    runtime_class="gvisor",
    cpu_request_share=0.25,
    owner=("v1", "ConfigMap", "holdfast", "0b1c"),
    cluster_cidrs=("10.244.0.0/16",),
)
RESTRICTED = replace(PLAIN, sandbox_profile="restricted")
SHARES_ALL = replace(PLAIN, shared=("*", "priority/*", "toleration/*", "toleration/*.kubernetes.io/*"))
ON_AMD64 = replace(PLAIN, node_selector=(("kubernetes.io/arch", "amd64"),))
EVERYTHING = Options(
    resources={"nvidia.com/gpu": 2},
    pids=1024,
    volumes=(
        Volume("empty", "/scratch", size_bytes=1 << 30),
        Volume("empty", "/dev/shm", size_bytes=64 << 20, in_memory=True),
        Volume("claim", "/data", "data-1", read_only=True),
        Volume("secret", "/run/token", "token"),
        Volume("config", "/etc/job", "job"),
    ),
    node_selector={"disk": "fast"},
    tolerations=(Toleration("spot", "Equal", "yes", "NoExecute", 60), Toleration("nvidia.com/gpu", "Exists", effect="NoSchedule")),
    runtime_class="kata",
    priority_class="batch",
    service_account="builder",
    pull_secrets=("regcred",),
    user=2000,
    group=3000,
    architecture="arm64",
)
CASES: dict[str, tuple[CreateRequest, KubernetesSettings, Any]] = {
    "plain-image": (order("sb-1", incarnation="1" * 16, image="debian:13"), PLAIN, "image"),
    "plain-init": (order("sb-1", incarnation="1" * 16, image="debian:13", disk_bytes=1 << 30), PLAIN, "init"),
    "everything": (
        order(
            "sb-2",
            incarnation="2" * 16,
            image="registry.example/ml/train@sha256:abc",
            cores=1.5,
            disk_bytes=10 << 30,
            env={"PATH": "/opt/bin:$PATH", "COST": "$(HOME) $$5", "EMPTY": ""},
            labels={"run": "7"},
            lifetime_s=60.0,
            egress=Egress("listed", (AllowedRange("1.1.1.0/24", (Port(443), Port(8000, 8100))),), dns=True),
            options=EVERYTHING,
        ),
        RICH,
        "image",
    ),
    "restricted": (order("sb-1", incarnation="1" * 16, image="debian:13"), RESTRICTED, "image"),
    "restricted-root": (
        order("sb-3", incarnation="3" * 16, options=Options(user=0, group=0)),
        replace(RICH, sandbox_profile="restricted"),
        "init",
    ),
    "root": (order("sb-1", incarnation="1" * 16, image="debian:13"), replace(PLAIN, sandbox_profile="root"), "init"),
    "named-user": (order("sb-1", incarnation="1" * 16, image="debian:13", options=Options(user=0)), PLAIN, "image"),
    "spare": (order("pool-ab12", incarnation="4" * 16, owner="", labels={"holdfast/pool": "debian small"}), PLAIN, "image"),
    "odd-id": (order("a.b_c-", incarnation="5" * 16), PLAIN, "image"),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    request, settings, injection = CASES[name]
    made = pod(request, settings, injection, "gateway-6c9f-x2x7q")
    path = GOLDEN / f"{name}.json"
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.write_text(text)
    assert path.read_text() == text
    check_pod(made, restricted=name == "restricted")


@pytest.mark.parametrize("name", CASES)
def test_a_record_written_to_a_pod_is_read_back(name: str) -> None:
    request, settings, injection = CASES[name]
    record = read_pod(pod(request, settings, injection, "r")).record
    assert record is not None
    assert record == request.spec


def test_the_token_is_only_in_the_environment() -> None:
    made = pod(order("sb-1", token="cd" * 32), PLAIN, "init", "r")
    made["spec"]["containers"][0]["env"] = []
    assert "cdcd" not in json.dumps(made)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        (Options(user=0), RESTRICTED, "root"),
        (Options(pids=100), PLAIN, "podPidsLimit"),
        (Options(pids=5000), RICH, "podPidsLimit"),
        (Options(volumes=(Volume("secret", "/x", "other"),)), RICH, "secret/other"),
        (Options(volumes=(Volume("claim", "/x", "data"),)), PLAIN, "claim/data"),
        (Options(service_account="default"), RICH, "service-account/default"),
        (Options(pull_secrets=("other",)), RICH, "pull-secret/other"),
        (Options(tolerations=(Toleration(operator="Exists"),)), RICH, "every taint"),
        (Options(tolerations=(Toleration(operator="Exists", effect="NoExecute"),)), RICH, "every taint"),
        (Options(tolerations=(Toleration("node-role.kubernetes.io/control-plane", "Exists"),)), RICH, "tolerations: toleration/node-role"),
        (Options(tolerations=(Toleration("node.kubernetes.io/unreachable", "Exists"),)), SHARES_ALL, "toleration/node.kubernetes.io"),
        (Options(tolerations=(Toleration("node.cloudprovider.kubernetes.io/x", "Exists"),)), SHARES_ALL, "toleration/node.cloud"),
        (Options(tolerations=(Toleration("CriticalAddonsOnly", "Exists"),)), RICH, "toleration/CriticalAddonsOnly"),
        (Options(tolerations=(Toleration("nvidia.com/gpu", "Exists"),)), PLAIN, "toleration/nvidia.com/gpu"),  # the request has no GPU
        (Options(priority_class="system-node-critical"), SHARES_ALL, "priority_class: priority/system-node-critical"),
        (Options(priority_class="system-cluster-critical"), RICH, "priority/system-cluster-critical"),
        (Options(priority_class="batch"), PLAIN, "priority/batch"),
        (Options(runtime_class="runc"), RICH, "runtime_class: runtime/runc"),
        (Options(runtime_class="kata"), PLAIN, "runtime/kata"),
        (Options(node_selector={"pool": "system"}), RICH, "node_selector: node/pool"),
        (Options(node_selector={"kubernetes.io/os": "windows"}), PLAIN, "node/kubernetes.io/os"),
        (Options(architecture="arm64"), ON_AMD64, "architecture: node/kubernetes.io/arch"),
    ],
)
def test_options_that_the_deployment_does_not_share_are_refused(options: Options, settings: KubernetesSettings, words: str) -> None:
    with pytest.raises(HoldfastError, match=words) as caught:
        pod(order("sb-1", options=options), settings, "image", "r")
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (Options(resources={"nvidia.com/gpu": 1}, tolerations=(Toleration("nvidia.com/gpu", "Exists"),)), PLAIN),  # taint of GPU nodes
        (Options(tolerations=(Toleration("sandboxes", "Exists"), Toleration("team-a", "Exists"))), RICH),  # a default, and shared
        (Options(tolerations=(Toleration("node-role.kubernetes.io/edge", "Exists"),)), RICH),  # shared by its full name
        (Options(runtime_class="gvisor"), RICH),  # the default class
        (Options(runtime_class="kata", priority_class="batch"), RICH),
        (Options(node_selector={"pool": "sandboxes", "zone": "a"}, architecture="arm64"), RICH),  # only narrows the selection
        (Options(node_selector={"kubernetes.io/arch": "arm64"}, architecture="arm64"), PLAIN),
        (Options(priority_class="system-node-critical"), replace(PLAIN, shared=("priority/system-node-critical",))),
    ],
)
def test_options_that_are_harmless_or_shared_are_accepted(options: Options, settings: KubernetesSettings) -> None:
    made = pod(order("sb-1", options=options), settings, "image", "r")
    assert made["spec"].get("runtimeClassName", "") == (options.runtime_class or settings.runtime_class)
    assert options.node_selector.items() | dict(settings.node_selector).items() <= made["spec"]["nodeSelector"].items()


@pytest.mark.parametrize("profile", ["userns", "root"])
@pytest.mark.parametrize("user", [None, 0, 1000])
@pytest.mark.parametrize("injection", ["image", "init"])
def test_a_pod_has_the_same_privileges_as_with_docker(profile: Any, user: int | None, injection: Any) -> None:
    made = pod(order("sb-1", options=Options(user=user)), replace(PLAIN, sandbox_profile=profile), injection, "r")
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert "securityContext" not in container, "keeps the default capabilities of the runtime and working setuid programs"
    assert "runAsNonRoot" not in spec["securityContext"]
    assert spec["securityContext"].get("runAsUser") == user, "the image's user where the request names none"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec.get("hostUsers", True) is (profile == "root")
    assert spec["automountServiceAccountToken"] is False
    check_pod(made, restricted=False)
    with pytest.raises(RefusedError, match="capabilities"):
        check_pod(made, restricted=True)


def test_a_group_without_user_is_refused_where_the_image_decides_the_user() -> None:
    with pytest.raises(HoldfastError, match="user_group needs user") as caught:
        pod(order("sb-1", options=Options(group=5)), PLAIN, "image", "r")
    assert caught.value.code == "invalid_argument"
    assert pod(order("sb-1", options=Options(group=5)), RESTRICTED, "image", "r")["spec"]["securityContext"]["fsGroup"] == 5
    both = pod(order("sb-1", options=Options(user=3, group=5)), PLAIN, "image", "r")["spec"]["securityContext"]
    assert (both["runAsUser"], both["runAsGroup"], both["fsGroup"]) == (3, 5, 5)


def test_contradicting_options_and_too_little_memory_are_refused() -> None:
    both = Options(node_selector={"kubernetes.io/arch": "arm64"}, architecture="amd64")
    with pytest.raises(HoldfastError, match="architecture contradicts") as caught:
        pod(order("sb-1", options=both), PLAIN, "image", "r")
    assert caught.value.code == "invalid_argument"
    with pytest.raises(HoldfastError, match="memory must be at least 16Mi") as caught:
        pod(order("sb-1", memory_bytes=4096), PLAIN, "image", "r")
    assert caught.value.code == "invalid_quantity"


def test_a_request_cannot_set_the_agents_settings() -> None:
    with pytest.raises(HoldfastError, match="HOLDFAST_AGENT_"):
        pod(order("sb-1", env={"HOLDFAST_AGENT_TOKEN": "x"}), PLAIN, "image", "r")


@given(st.text("abcz019._-", min_size=1, max_size=63).filter(lambda text: text[0] not in "._-"))
def test_any_id_gives_a_valid_name_and_label(sandbox_id: str) -> None:
    made = pod(order(sandbox_id), RESTRICTED, "image", "replica")
    check_pod(made, restricted=True)
    assert made["metadata"]["name"] == pod_name(sandbox_id)
    assert len(pod_name(sandbox_id)) <= 63
    record = read_pod(made).record
    assert record is not None
    assert record.sandbox_id == sandbox_id


def test_names_of_different_ids_differ() -> None:
    ids = ["a", "a-", "a.", "a_", "a-b", "a.b", "a_b", "x" * 62, "x" * 63]
    assert len({pod_name(id_) for id_ in ids}) == len(ids)
    assert len({label_value(id_) for id_ in ids}) == len(ids)


def test_every_rest_option_stays_within_the_restricted_standard() -> None:
    options = read_options(
        {
            "gpu": 1,
            "volumes": [{"path": "/w", "size": "1Gi"}, {"kind": "config", "path": "/c", "source": "c"}],
            "tolerations": [{"key": "team-a", "operator": "Exists"}],
            "user": 5,
            "user_group": 0,
        }
    )
    settings = replace(RICH, allow_root=False, sandbox_profile="restricted")
    check_pod(pod(order("sb-1", options=options), settings, "init", "r"), restricted=True)
    check_pod(pod(order("sb-1", options=options), replace(settings, sandbox_profile="userns"), "init", "r"), restricted=False)


def test_entrypoint_and_ulimits_are_passed_to_the_agent() -> None:
    options = Options(entrypoint=("sh", "-c", "echo $(HOME) é"), ulimits={"nofile": (1024, -1)})
    made = pod(order("sb-6", options=options), PLAIN, "image", "r")
    env = {one["name"]: one.get("value", "") for one in made["spec"]["containers"][0]["env"]}
    assert json.loads(env["HOLDFAST_AGENT_ENTRYPOINT"].replace("$$", "$")) == ["sh", "-c", "echo $(HOME) é"]
    assert json.loads(env["HOLDFAST_AGENT_ULIMITS"]) == {"nofile": [1024, -1]}
    record = read_pod(made).record
    assert record is not None
    assert record.options == options
    with pytest.raises(HoldfastError, match="give the words") as refused:
        pod(order("sb-7", options=Options(entrypoint=True)), PLAIN, "image", "r")
    assert refused.value.code == "unsupported"


def test_shared_memory_of_a_requested_size_is_a_volume_in_memory() -> None:
    made = pod(order("sb-8", options=Options(shm_bytes=1 << 28)), PLAIN, "image", "r")
    (volume,) = [one for one in made["spec"]["volumes"] if one["name"] == "hf-shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": str(1 << 28)}
    assert {"name": "hf-shm", "mountPath": "/dev/shm"} in made["spec"]["containers"][0]["volumeMounts"]
    record = read_pod(made).record
    assert record is not None
    assert record.options == Options(shm_bytes=1 << 28)
