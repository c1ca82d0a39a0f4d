"""Metrics of gateway and controller, in Prometheus' text format.

Owns the name, the labels and the meaning of every metric. Values are per process: each replica is scraped by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "audit_lines_total": ("Entries of the audit log that were written.", ()),
    "audit_lost_total": ("Entries of the audit log that were dropped because it could not be written.", ()),
    "attach_refused_total": ("Attaches of sessions that were refused.", ("code",)),
    "attach_total": ("Sessions that were attached.", ()),
    "branches_total": ("Sandboxes that were created as branches.", ()),
    "create_failed_total": ("Creates that failed.", ("code",)),
    "commands_total": (
        "Commands that ended: over REST, and of sessions where the audit log follows them, by what ended them (ok: exit code 0).",
        ("via", "outcome"),
    ),
    "creates_refused_total": ("Creates refused by a quota or a full queue.", ("code", "what")),
    "creates_total": ("Sandboxes that became ready.", ()),
    "creates_of_owner_total": ("Sandboxes that became ready, by owner (HOLDFAST_METRICS_OWNERS).", ("owner",)),
    "deletes_total": ("Deletions of sandboxes.", ()),
    "gap_bytes_total": ("Bytes of output that were lost to a reader: by REST, or in a journal that is followed.", ("where",)),
    "gaps_total": ("Places at which output, or a journal that is followed, has lost something.", ("where",)),
    "execs_total": ("One-off commands over REST.", ()),
    "pauses_total": ("Sandboxes that were paused, by where they wait: memory or disk.", ("to",)),
    "pool_claims_total": ("Creates that matched a warm pool, by outcome: warm, empty or failed.", ("outcome",)),
    "pool_discards_total": ("Spares that were removed.", ()),
    "pool_failures_total": ("Spares that could not be created.", ("code", "pool")),
    "pool_makes_total": ("Spares that were created.", ("pool",)),
    "reconcile_actions_total": ("Actions of the controller's reconciliation.", ("action",)),
    "reconcile_passes_total": ("Passes of the controller's reconciliation.", ()),
    "requests_limited_total": ("Requests refused by a rate of an owner, project or key.", ("limit",)),
    "requests_total": ("Answered HTTP requests.", ("method", "route", "status")),
    "session_bytes_total": (
        "Bytes that sessions relayed, by direction, counted by the kernel: up from clients, down to them.",
        ("direction",),
    ),
    "session_resumes_total": ("Sessions that were attached with the ticket of an earlier attach.", ()),
    "resumes_total": ("Sandboxes that continued after a pause.", ()),
    "sandboxes_ended_total": ("Sandboxes whose end the runtime reported.", ("fault", "reason")),
    "sandboxes_expired_total": ("Sandboxes that the controller ended.", ("reason",)),
    "snapshots_total": ("Snapshots of sandboxes.", ()),
}
_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "attached_sessions": ("Sessions attached to this replica.", ()),
    "audit_available": ("1 while the audit log can be written, else 0.", ()),
    "audit_waiting": ("Entries of the audit log that wait to be written.", ()),
    "dials_waiting": ("Dials of agents that wait for a place.", ()),
    "turns_waiting": ("Connections whose received bytes wait for a later turn of the event loop.", ()),
    "placement_available": ("1 while Redis answers, else 0; as of this scrape.", ()),
    "runtime_available": ("1 while the runtime answers, else 0; as of this scrape.", ()),
    "creates_running": ("Creates that this replica's runtime is carrying out.", ()),
    "creates_waiting": ("Creates in this replica's queue.", ()),
    "leading": ("1 if this controller is the leader, else 0.", ()),
    "node_disk_bytes": (
        "Bytes of one machine's data folder: free, promised (used by sandboxes, not stored yet) and left for new data.",
        ("state",),
    ),
    "node_spares": ("Spares of the node of one machine, by state: ready, wanted (by recent creates) and most (the limit).", ("state",)),
    "pool_making": ("Spares that are being created.", ("pool",)),
    "pool_spares": ("Spares that are ready for adoption.", ("pool",)),
    "prepull_nodes_ready": ("Nodes that have a pre-pulled image.", ("image",)),
    "prepull_nodes_wanted": ("Nodes that should have a pre-pulled image.", ("image",)),
    "tasks": ("Tasks on this process's event loop.", ()),
}
_HISTOGRAMS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "attach_seconds": ("Seconds from the request for an upgrade to an attached session.", ()),
    "branch_seconds": ("Seconds that one request for branches took, until all of them were ready.", ()),
    "create_queue_seconds": ("Seconds that a create waited in the queue.", ()),
    "command_seconds": ("Seconds that commands ran, as counted in commands_total.", ("via",)),
    "create_stage_seconds": ("Seconds of each stage of a create: reserve, queue, provision (runtime and agent) and record.", ("stage",)),
    "loop_lag_seconds": ("Seconds by which a timer of the event loop was late, four times a second.", ()),
    "ready_seconds": ("Seconds from the arrival of a create to its ready sandbox.", ()),
    "create_seconds": ("Seconds from the end of the wait in the queue to a ready sandbox.", ()),
    "reconcile_seconds": ("Seconds that a pass of the controller's reconciliation took.", ()),
    "request_seconds": ("Seconds from a request's head to the end of its answer.", ("route",)),
    "snapshot_seconds": ("Seconds that a snapshot took.", ()),
}
_MOST_OWNERS: Final = 200
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HISTOGRAM: Final = functools.partial(Histogram, buckets=_BUCKETS_S)


class Metrics:
    """One per replica. A metric appears with its first value; a name or label outside the tables raises ``KeyError`` or ``ValueError``."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        self._children: dict[tuple[object, ...], Any] = {}
        self._owners: set[str] = set()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._find(name, Counter, _COUNTERS, labels).inc(amount)

    def counter(self, name: str, **labels: str) -> Callable[[], None]:
        """Counts one more of ``name`` with these labels: for callers that keep it, since to find it again takes longer than to count."""
        counts: Callable[[], None] = self._find(name, Counter, _COUNTERS, labels).inc
        return counts

    def histogram(self, name: str, **labels: str) -> Callable[[float], None]:
        """Observes seconds of ``name`` with these labels; see ``counter``."""
        observes: Callable[[float], None] = self._find(name, _HISTOGRAM, _HISTOGRAMS, labels).observe
        return observes

    def count_owner(self, name: str, owner: str) -> None:
        """As ``count``, for at most so many owners by name as ``_MOST_OWNERS``: those that come later are ``other`` together."""
        if owner not in self._owners and len(self._owners) < _MOST_OWNERS:
            self._owners.add(owner)
        self.count(name, owner=owner if owner in self._owners else "other")

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._find(name, Gauge, _GAUGES, labels).set(value)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        self._find(name, _HISTOGRAM, _HISTOGRAMS, labels).observe(seconds)

    def _find(self, name: str, kind: Callable[..., Any], table: Mapping[str, tuple[str, tuple[str, ...]]], labels: dict[str, str]) -> Any:
        """The metric for these labels, cached by the labels in the given order."""
        key = (name, *labels.items())
        found = self._children.get(key)
        if found is None:
            if name not in self._metrics:
                text, names = table[name]
                self._metrics[name] = kind(f"holdfast_{name}", text, names, registry=self._registry)
            metric = self._metrics[name]
            found = self._children[key] = metric.labels(**labels) if labels else metric
        return found

    def render(self) -> str:
        """The exposition format, text version 0.0.4."""
        with contextlib.suppress(RuntimeError):  # without a running event loop there are no tasks
            self.gauge("tasks", len(asyncio.all_tasks()))
        return generate_latest(self._registry).decode()
