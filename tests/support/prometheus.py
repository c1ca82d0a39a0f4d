"""A real Prometheus that scrapes a stack, with the alert rules of this repository and windows of seconds in the place of minutes.

Owns its process, its folder and the shortened rules. Its package is Debian's.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from holdfast_server.embed import free_port

from tests.support.until import until

ALERTS = Path(__file__).resolve().parents[2] / "infra" / "monitoring" / "alerts.yaml"
_WINDOW = re.compile(r"(\[|offset )(\d+)m")


def shortened(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules with windows of two seconds for each minute, and without a wait before they fire."""
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(lambda found: f"{found[1]}{2 * int(found[2])}s", rule["expr"])
            rule["for"] = "1s"
    return rules


class Prometheus:
    """A running one."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log

    def get(self, path: str) -> Any:
        """The data of an answer of its API."""
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            found = self.get("targets")["activeTargets"]
            return len(found) > 0 and all(one["health"] == "up" for one in found)
        return False

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {one["labels"]["alertname"] for one in self.get("alerts")["alerts"] if one["state"] == "firing"}

    def wait_for(self, *alerts: str, deadline_s: float = 60.0) -> None:
        """Until all of these fire."""
        until(lambda: set(alerts) <= self.firing(), deadline_s=deadline_s, what=lambda: f"{alerts} to fire; firing are {self.firing()}")

    def wait_until_quiet(self, *alerts: str, deadline_s: float = 90.0) -> None:
        """Until none of these fires."""
        until(lambda: not set(alerts) & self.firing(), deadline_s=deadline_s, what=lambda: f"{alerts} to end; firing are {self.firing()}")


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Scrape ``targets``, job to host and port, every second."""
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump(shortened(yaml.safe_load(ALERTS.read_text()))))
    jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
    timing = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": timing, "rule_files": [str(rules)], "scrape_configs": jobs}))
    subprocess.run(["promtool", "check", "config", str(config)], check=True, capture_output=True)
    port, log = free_port(), folder / "prometheus.log"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with log.open("wb") as output:
        process = subprocess.Popen(["prometheus", *arguments], stdout=output, stderr=output)
    try:
        running = Prometheus(f"http://127.0.0.1:{port}", log)
        until(running.is_ready, deadline_s=60, what=lambda: f"Prometheus to scrape; its log: {log.read_text()[-2000:]}")
        yield running
    finally:
        process.terminate()
        process.wait()
