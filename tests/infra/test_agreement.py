"""The manifests agree with the code in names, ports, settings, metrics and drain times, and everything that one manifest names exists in
another.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from holdfast_wire.bundle import AGENT_PORT

from gateway.__main__ import server_config
from gateway.faces.rest import FACE
from gateway.metrics import Metrics
from gateway.settings import RelaySettings, Settings
from gateway.tracing import Spans
from infra.scripts.deploy.keys import KEYS, REDIS
from infra.scripts.deploy.render import SETTINGS
from tests.gateway.harness import serve
from tests.infra.kustomize import Manifest
from tests.infra.overlays import ALL, EVERYTHING, TOP, of_kind, pod_templates, rendered

PORT = Settings(data_dir=Path()).port
SECRET_KEYS = {KEYS: {"keys", "secret"}, REDIS: {"password", "url"}}
GATEWAY = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "gateway"}


def labels_by_workload(name: str) -> dict[str, dict[str, str]]:
    return {which: template["metadata"]["labels"] for which, template in pod_templates(name)}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(one["operator"] == "In" for one in expressions)
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def containers(name: str, component: str) -> list[dict[str, Any]]:
    return [
        container
        for _, template in pod_templates(name)
        if template["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for container in template["spec"]["containers"]
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_selector_finds_a_workload(name: str) -> None:
    found = labels_by_workload(name)
    kinds = set()
    for manifest in rendered(name):
        kind, spec = manifest["kind"], manifest.get("spec", {})
        kinds.add(kind)
        if kind in ("Deployment", "StatefulSet"):
            assert selects(spec["selector"], spec["template"]["metadata"]["labels"])
            assert sum(selects(spec["selector"], labels) for labels in found.values()) == 1, "two workloads would claim the same pods"
        elif kind == "PodDisruptionBudget":
            assert sum(selects(spec["selector"], labels) for labels in found.values()) == 1
        elif kind == "Service" and "selector" in spec:
            assert any(selects({"matchLabels": spec["selector"]}, labels) for labels in found.values()), manifest["metadata"]["name"]
        elif kind == "NetworkPolicy" and manifest["metadata"]["namespace"] == "holdfast":
            assert any(selects(spec["podSelector"], labels) for labels in found.values()), manifest["metadata"]["name"]
    assert {"Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"} <= kinds


@pytest.mark.parametrize("name", ALL)
def test_everything_that_a_workload_names_exists(name: str) -> None:
    present = {(one["kind"], one["metadata"]["name"]) for one in rendered(name)}
    for which, template in pod_templates(name):
        spec = template["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in present
        if "priorityClassName" in spec:
            assert ("PriorityClass", spec["priorityClassName"]) in present
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        claims = [one for one in of_kind(name, "StatefulSet") if which.endswith(one["metadata"]["name"])]
        volumes |= {claim["metadata"]["name"] for one in claims for claim in one["spec"].get("volumeClaimTemplates", ())}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes, which
            for source in container.get("envFrom", ()):
                assert ("ConfigMap", source["configMapRef"]["name"]) in present
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = next(iter(set(container.get(probe, {})) & {"httpGet", "tcpSocket"}), None)
                if port:
                    assert container[probe][port]["port"] in ports | {PORT}
    for scaler in of_kind(name, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in present
        deployment = next(one for one in of_kind(name, "Deployment") if one["metadata"]["name"] == target["name"])
        assert "replicas" not in deployment["spec"], "applying again would undo the autoscaler"


@pytest.mark.parametrize("name", ALL)
def test_secrets_are_those_that_the_deploy_script_creates(name: str) -> None:
    mounted, referenced = set(), set()
    for which, template in pod_templates(name):
        for volume in template["spec"].get("volumes", ()):
            if "secret" in volume:
                assert volume["secret"]["secretName"] == KEYS
                mounted.add(which)
            if "configMap" in volume:
                assert volume["configMap"]["name"] in {one["metadata"]["name"] for one in of_kind(name, "ConfigMap")}
        for container in template["spec"]["containers"]:
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["key"] in SECRET_KEYS[reference["name"]]
                    referenced.add(which)
    assert len(mounted) == 2, "the gateway and the controller"
    assert referenced == {which for which, _ in pod_templates(name)}, "every workload needs the password of Redis"


@pytest.mark.parametrize("name", ALL)
def test_a_password_is_defined_before_the_address_that_contains_it(name: str) -> None:
    for component in ("gateway", "controller"):
        for container in containers(name, component):
            names = [variable["name"] for variable in container["env"]]
            url = next(variable for variable in container["env"] if variable["name"] == "HOLDFAST_REDIS_URL")
            if name == EVERYTHING:  # the whole address of a managed Redis is in the Secret
                assert "valueFrom" in url
                assert "value" not in url
            else:
                assert re.findall(r"\$\((\w+)\)", url["value"]) == ["HOLDFAST_REDIS_PASSWORD"]
                assert names.index("HOLDFAST_REDIS_PASSWORD") < names.index("HOLDFAST_REDIS_URL")


@pytest.mark.parametrize("name", ALL)
def test_every_setting_is_one_the_service_reads(name: str) -> None:
    read = "".join(path.read_text() for path in (TOP / "gateway").rglob("*.py"))
    configured = {key for one in of_kind(name, "ConfigMap") if one["metadata"]["name"] == SETTINGS for key in one["data"]}
    for component in ("gateway", "controller"):
        for container in containers(name, component):
            configured |= {variable["name"] for variable in container["env"]}
    configured.discard("HOLDFAST_REDIS_PASSWORD")  # only part of the address
    assert {setting for setting in configured if f'"{setting}"' not in read} == set()


@pytest.mark.parametrize("name", ALL)
def test_ports_of_containers_and_policies_agree(name: str) -> None:
    gateway = containers(name, "gateway")[0]
    assert [port["containerPort"] for port in gateway["ports"]] == [PORT]
    assert {variable.get("value") for variable in gateway["env"] if variable["name"] == "PORT"} <= {str(PORT)}
    controller = containers(name, "controller")[0]
    settings = next(one["data"] for one in of_kind(name, "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    metrics_port = int(settings["HOLDFAST_METRICS_PORT"])
    assert [port["containerPort"] for port in controller["ports"]] == [metrics_port]
    policies = {(one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"] for one in of_kind(name, "NetworkPolicy")}
    assert policies["holdfast", "gateway"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": PORT}]}]
    assert policies["holdfast", "controller"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": metrics_port}]}]
    agents = [{"protocol": "TCP", "port": AGENT_PORT}]
    assert [rule["ports"] for rule in policies["holdfast-sandboxes", "agents-from-gateways"]["ingress"]] == [agents]
    outward = policies["holdfast", "gateway-and-controller-egress"]["egress"]
    assert [rule["ports"] for rule in outward if "to" in rule] == [agents]


@pytest.mark.parametrize("name", ALL)
def test_sandboxes_are_isolated_in_both_directions(name: str) -> None:
    policies = [one["spec"] for one in of_kind(name, "NetworkPolicy") if one["metadata"]["namespace"] == "holdfast-sandboxes"]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    assert all("egress" not in spec for spec in policies), "policies are additive: one that allows egress allows it to all"
    sources = [source for spec in policies for rule in spec.get("ingress", ()) for source in rule["from"]]
    assert [source["namespaceSelector"]["matchLabels"] for source in sources] == [{"kubernetes.io/metadata.name": "holdfast"}]
    pods = sources[0]["podSelector"]
    callers = {labels["app.kubernetes.io/component"] for labels in labels_by_workload(name).values() if selects(pods, labels)}
    assert callers == {"gateway", "controller"}


@pytest.mark.parametrize("name", ALL)
def test_probes_request_paths_that_are_served(name: str) -> None:
    served = {row.path for row in FACE.rows if row.method == "GET"}
    (container,) = containers(name, "gateway")
    probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe") if probe in container]
    assert len(probes) == (2 if name == "knative" else 3)
    assert set(probes) <= served
    assert container["readinessProbe"]["httpGet"]["path"] != "/readyz", "all replicas would become unready together when Redis fails"


@pytest.mark.parametrize("name", ALL)
def test_drain_fits_into_the_grace_period(name: str) -> None:
    settings = next(one["data"] for one in of_kind(name, "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    relay = RelaySettings(drain_s=float(settings["HOLDFAST_DRAIN_S"]))
    (spec,) = [one["spec"] for _, one in pod_templates(name) if one["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"]
    grace = spec.get("terminationGracePeriodSeconds", spec.get("timeoutSeconds"))  # Knative uses its timeout as grace period
    pause = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    server = server_config(Settings(data_dir=Path(), relay=relay), _UnusedGateway()).timeout_graceful_shutdown  # type: ignore[arg-type]
    assert server is not None
    assert grace >= pause + server + 5


class _UnusedGateway:
    """A gateway that receives no request."""

    settings = Settings(data_dir=Path())
    metrics = Metrics()
    spans = Spans()


@pytest.mark.parametrize("name", [name for name in ALL if name != "knative"])
def test_a_rollout_replaces_one_gateway_at_a_time(name: str) -> None:
    deployment = next(one for one in of_kind(name, "Deployment") if one["metadata"]["name"] == "holdfast-gateway")
    # A gateway preempts no sandbox, so on full nodes the gateway that ends makes room for its replacement.
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 1}
    budgets = {one["metadata"]["name"]: one["spec"]["maxUnavailable"] for one in of_kind(name, "PodDisruptionBudget")}
    assert budgets == {"holdfast-gateway": 1, "holdfast-controller": 1}


@pytest_asyncio.fixture
async def metrics(redis_url: str, tmp_path: Path) -> AsyncIterator[set[str]]:
    """The metric names of a running gateway."""
    async with serve(redis_url, tmp_path) as running, httpx.AsyncClient(base_url=running.url) as client:
        await client.get("/healthz")
        yield set(re.findall(r"(?m)^(\w+)", (await client.get("/metrics")).text))


async def test_gateways_are_scaled_by_a_metric_that_exists(metrics: set[str]) -> None:
    wanted = {
        metric["pods"]["metric"]["name"]
        for scaler in of_kind(EVERYTHING, "HorizontalPodAutoscaler")
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert wanted == {"holdfast_attached_sessions"}
    assert wanted <= metrics
    component = (TOP / "infra/k8s/components/autoscaling-sessions/kustomization.yaml").read_text()
    assert f"seriesQuery: {wanted.pop()}{{" in component


def test_ingresses_routes_and_monitors_select_the_service() -> None:
    service = next(one for one in of_kind(EVERYTHING, "Service") if one["metadata"]["name"] == "holdfast-gateway")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    backend = of_kind(EVERYTHING, "Ingress")[0]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == "holdfast-gateway"
    assert backend["port"]["name"] in ports
    rule = of_kind(EVERYTHING, "HTTPRoute")[0]["spec"]["rules"][0]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert [(one["name"], one["port"]) for one in rule["backendRefs"]] == [("holdfast-gateway", ports["http"])]
    monitor = of_kind(EVERYTHING, "ServiceMonitor")[0]["spec"]
    assert selects(monitor["selector"], service["metadata"]["labels"])
    assert [(one["port"], one["path"]) for one in monitor["endpoints"]] == [("http", "/metrics")]
    pods = of_kind(EVERYTHING, "PodMonitor")[0]["spec"]
    template = next(one for which, one in pod_templates(EVERYTHING) if which.endswith("holdfast-controller"))
    assert selects(pods["selector"], template["metadata"]["labels"])
    names = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert {one["port"] for one in pods["podMetricsEndpoints"]} <= names


def test_knative_keeps_sessions_alive_and_scales_gateways_to_zero() -> None:
    service: Manifest = next(one for one in rendered("knative") if one["apiVersion"].startswith("serving.knative.dev"))
    template = service["spec"]["template"]
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == "0"
    assert template["metadata"]["labels"] == GATEWAY, "otherwise the policy of the agents would not select it"
    spec = template["spec"]
    assert spec["idleTimeoutSeconds"] <= spec["timeoutSeconds"]
    assert spec["responseStartTimeoutSeconds"] <= spec["timeoutSeconds"] <= 600, "the most that the default config-defaults allows"
    assert of_kind("knative", "HorizontalPodAutoscaler", "PodDisruptionBudget") == [
        one for one in of_kind("knative", "PodDisruptionBudget") if one["metadata"]["name"] == "holdfast-controller"
    ]


@pytest.mark.parametrize("name", ALL)
def test_the_priority_class_for_sandboxes_is_shared_and_preempts_nothing(name: str) -> None:
    settings = next(one["data"] for one in of_kind(name, "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    shared = [pattern.strip() for pattern in settings["HOLDFAST_SHARED"].split(",")]
    classes = {f"priority/{one['metadata']['name']}": one for one in of_kind(name, "PriorityClass")}
    offered = [one for which, one in classes.items() if which in shared]
    assert set(shared) <= set(classes), "nothing else is shared by default"
    assert [(one["metadata"]["name"], one["preemptionPolicy"]) for one in offered] == [("holdfast-batch", "Never")]
    assert all(one["value"] < 0 for one in offered)


@pytest.mark.parametrize("name", ALL)
def test_the_service_preempts_no_sandbox_and_its_rollout_cannot_block(name: str) -> None:
    classes = {one["metadata"]["name"]: one for one in of_kind(name, "PriorityClass")}
    assert {one["preemptionPolicy"] for one in classes.values()} == {"Never"}
    assert "holdfast-system" not in classes, "a class that a cluster already has cannot be changed to this policy"
    named = {which: template["spec"].get("priorityClassName") for which, template in pod_templates(name)}
    assert all(classes[one]["value"] > 0 for one in named.values() if one), "they are the first to get capacity that becomes free"
    assert all(one for which, one in named.items() if not which.startswith("Service ")), named  # Knative gives its pods no priority class
    for one in of_kind(name, "Deployment"):
        assert one["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1, one["metadata"]["name"]


def test_aks_puts_the_service_and_the_sandboxes_on_their_own_pools() -> None:
    for which, template in pod_templates("aks"):
        assert template["spec"]["nodeSelector"] == {"pool": "system"}, which
    settings = next(one["data"] for one in of_kind("aks", "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    assert settings["HOLDFAST_NODE_SELECTOR"] == "workload=sandbox"
    assert "workload" in settings["HOLDFAST_TOLERATIONS"].split(",")
    assert float(settings["HOLDFAST_UNSCHEDULABLE_PATIENCE_S"]) >= 300, "the pool of sandboxes scales from zero"


def test_contributing_names_files_and_functions_that_exist() -> None:
    top = Path(__file__).resolve().parents[2]
    text = (top / "CONTRIBUTING.md").read_text()
    files = subprocess.run(["git", "ls-files"], cwd=top, capture_output=True, text=True, check=True).stdout.split()
    for name in re.findall(r"`([\w/.-]+\.(?:py|lua|md|yaml))`", text):
        assert any(file == name or file.endswith(f"/{name}") for file in files), name
    places = re.findall(r"`([\w.]+)` (?:and `(\w+)` )?in `([\w/.-]+\.py)`", text)
    assert len(places) >= 8
    for first, second, name in places:
        sources = [(top / file).read_text() for file in files if file == name or file.endswith(f"/{name}")]
        for function in filter(None, (first, second)):
            assert any(f"def {function.rpartition('.')[2]}(" in source for source in sources), (function, name)
