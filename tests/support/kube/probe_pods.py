"""Ends the pods of the network probe as a network would: one that enforces policies, or one that does not.

Owns these pods' whole life; the kubelet leaves them alone. Nothing runs in them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from .objects import Entry
from .server import FakeApi

_ROLE = "holdfast.dev/canary-role"
OWN_USERS, NODES_USERS = "         0  524288      65536\n", "         0          0 4294967295\n"
_REACHED, _NOT_REACHED = 40, 41


class ProbePods:
    """``enforced``: whether a probe of the network finds policies enforced. ``played`` counts the listener pods.

    ``uid_map`` and ``volume``: the values that probes of the nodes report.
    """

    def __init__(self, api: FakeApi, *, enforced: bool = True, uid_map: str = OWN_USERS, volume: bool = True) -> None:
        self.uid_map = uid_map
        self.volume = volume
        self.api = api
        self.enforced = enforced
        self.played = 0

    @contextlib.contextmanager
    def run(self) -> Iterator[ProbePods]:
        self.api.pods.on_write.append(self._on_write)
        try:
            yield self
        finally:
            self.api.pods.on_write.remove(self._on_write)

    def _on_write(self, entry: Entry) -> None:
        role = (entry.object["metadata"].get("labels") or {}).get(_ROLE)
        if role is None or entry.kind != "ADDED":
            return
        self.played += role == "listener"
        code = _NOT_REACHED if role == "closed" and self.enforced else _REACHED
        state: dict[str, Any] = {"running": {}} if role == "listener" else {"terminated": {"exitCode": code}}
        if role in ("users", "volume"):
            has_volume = "volumes" in entry.object["spec"] and self.volume
            report = {"uid_map": self.uid_map, "volume": has_volume}
            state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": json.dumps(report)}}
        name, status = entry.object["metadata"]["name"], {"podIP": "127.0.0.1", "containerStatuses": [{"name": "canary", "state": state}]}
        self.api.pods.update(name, lambda pod: pod.update(status=status))
