"""Runs kubectl for the scripts of this folder, and turns its failures into readable errors.

Called by the other modules of this package and by the smoke test.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SYSTEM = "holdfast"
SANDBOXES = "holdfast-sandboxes"


def moment(text: str) -> float:
    """A time of the API server, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


class DeployError(Exception):
    """The deployment cannot continue; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``program`` is its path, ``context`` the kubeconfig's context, if not the current one."""

    program: str = "kubectl"
    context: str = ""

    def command(self, *arguments: str) -> list[str]:
        return [self.program, *(["--context", self.context] if self.context else []), *arguments]

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl; returns its output. Raises ``DeployError`` with its error message."""
        try:
            done = subprocess.run(self.command(*arguments), input=text, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise DeployError(f"{self.program} is not installed") from None
        if done.returncode:
            raise DeployError(f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any] | None:
        """One object, or None if it does not exist."""
        answer = self.run("get", *arguments, "--ignore-not-found", "--output", "json")
        found: dict[str, Any] | None = json.loads(answer) if answer.strip() else None
        return found

    def apply(self, manifests: Sequence[dict[str, Any]], *, dry_run: bool = False) -> str:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        return self.run("apply", "--filename", "-", *(["--dry-run=server"] if dry_run else []), text=text)

    def reachable(self) -> None:
        """Raise ``DeployError`` unless a cluster answers."""
        if shutil.which(self.program) is None:
            raise DeployError(f"{self.program} is not installed")
        try:
            self.run("version", "--request-timeout=10s")
        except DeployError as error:
            raise DeployError(f"no cluster answers: set KUBECONFIG or --context ({error})") from None
