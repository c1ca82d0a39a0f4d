"""Metrics, alert rules and the dashboard, read by a real Prometheus and promtool; a sample of the alerts is made to fire by its fault.

``test_every_alert`` makes all of them fire (`make soak`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast import SandboxClient
from holdfast_server.embed import free_port

from gateway import metrics
from tests.support.prometheus import ALERTS, prometheus
from tests.support.requires import requires
from tests.support.stack import running_stack

TOP = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((ALERTS.parent / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
NAME = re.compile(r"\bholdfast_\w+")


def known() -> set[str]:
    """The names of all series."""
    plain = {f"holdfast_{name}" for name in (*metrics._COUNTERS, *metrics._GAUGES)}
    return plain | {f"holdfast_{name}_{part}" for name in metrics._HISTOGRAMS for part in ("bucket", "sum", "count")}


def test_the_rules_of_the_cluster_are_the_same() -> None:
    rendered = yaml.safe_load((TOP / "infra/k8s/components/monitoring/rules.yaml").read_text())
    assert rendered["spec"]["groups"] == yaml.safe_load(ALERTS.read_text())["groups"]


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES), *EXPRESSIONS])
def test_rules_and_panels_name_metrics_that_exist(expression: str) -> None:
    assert set(NAME.findall(expression)) <= known()


def test_each_alert_has_a_paragraph_in_the_runbook() -> None:
    runbook = (TOP / "infra" / "README.md").read_text()
    for rule in RULES:
        name = rule["alert"]
        paragraph = runbook.partition(f"\n#### {name}\n")[2].partition("\n#")[0].strip()
        assert len(paragraph) > 120, f"infra/README.md says nothing of {name}"
        assert rule["annotations"]["runbook"] == f"infra/README.md#{name.lower()}"


def test_the_dashboard_can_be_imported() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 15
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@requires("prometheus")
def test_promtool_checks_the_rules_and_the_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"check:panel{number}", "expr": one.replace("$__rate_interval", "1m")} for number, one in enumerate(EXPRESSIONS)]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (ALERTS, panels):
        told = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
        assert told.returncode == 0, told.stdout + told.stderr


@requires("prometheus", "namespaces")
def test_prometheus_scrapes_a_stack_and_two_alerts_fire_by_their_faults(tmp_path: Path) -> None:
    port = free_port()
    settings = {"HOLDFAST_METRICS_PORT": str(port), "HOLDFAST_METRICS_OWNERS": "1", "HOLDFAST_REDIS_TIMEOUT_MS": "600"}
    with running_stack({**settings, "HOLDFAST_AUDIT": str(tmp_path / "audit")}) as stack:
        with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox:
            sandbox.shell().run("true")
        with SandboxClient(stack.url, stack.key, transport="rest") as client, client.create_sandbox("host") as sandbox:
            sandbox.exec(["true"])
        address = stack.url.removeprefix("http://")
        for target in (address, f"127.0.0.1:{port}"):
            with urllib.request.urlopen(f"http://{target}/metrics") as answer:
                told = subprocess.run(["promtool", "check", "metrics"], input=answer.read(), capture_output=True)
            assert told.returncode == 0, told.stdout + told.stderr
        with prometheus(tmp_path, {"holdfast-gateway": address, "holdfast-controller": f"127.0.0.1:{port}"}) as seen:
            series = {one["__name__"] for one in seen.get("series?match[]={__name__=~%22holdfast_.*%22}")}
            wanted = {
                "ready_seconds_count",
                "create_stage_seconds_bucket",
                "commands_total",
                "session_bytes_total",
                "loop_lag_seconds_count",
            }
            wanted |= {"attach_seconds_bucket", "creates_of_owner_total", "placement_available", "leading", "creates_waiting"}
            assert {f"holdfast_{name}" for name in wanted} <= series
            assert series <= known()
            seen.wait_until_quiet(*(rule["alert"] for rule in RULES if rule["alert"] != "HoldfastDiskLow"))
            redis = stack.pid("redis")
            os.kill(redis, signal.SIGSTOP)
            try:
                seen.wait_for("HoldfastPlacementAway")
            finally:
                os.kill(redis, signal.SIGCONT)
            controller = stack.pid("controller")
            os.kill(controller, signal.SIGSTOP)
            try:
                seen.wait_for("HoldfastDown", "HoldfastNoLeader")
            finally:
                os.kill(controller, signal.SIGCONT)
            seen.wait_until_quiet("HoldfastPlacementAway", "HoldfastDown", "HoldfastNoLeader")
