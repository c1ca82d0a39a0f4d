"""The specification of a sandbox on its pod: an annotation, written at creation and read back from any list.

A second annotation has what the sandbox may reach, which changes while it runs. A pod without readable annotations is not one of this
service. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.documents import read_spec, write_spec
from gateway.model.option_fields import network_map, read_network
from gateway.model.options import Egress
from gateway.model.records import SandboxSpec
from gateway.runtimes.kubernetes.names import NETWORK, RECORD

_TEXTS = ("sandbox_id", "owner", "incarnation", "image", "cpu", "memory", "group")
_NUMBERS = ("cores", "memory_bytes", "ready_timeout_s")
_LIMITS = ("disk_bytes", "lifetime_s", "idle_timeout_s", "heartbeat_timeout_s", "group_ttl_s")


def annotations_of(spec: SandboxSpec) -> dict[str, str]:
    """The annotations of a sandbox's pod."""
    return {RECORD: write_spec(spec).decode(), NETWORK: network_annotation(spec.egress)}


def network_annotation(egress: Egress) -> str:
    return orjson.dumps(network_map(egress), option=orjson.OPT_SORT_KEYS).decode()


def read_record(pod_annotations: dict[str, Any]) -> SandboxSpec | None:
    """The sandbox as it was requested, None where that cannot be read: other clients of the cluster may write annotations."""
    try:
        spec = read_spec(pod_annotations[RECORD])
        egress = read_network(orjson.loads(pod_annotations.get(NETWORK) or "{}"))
        labels = {str(name): str(value) for name, value in spec.labels.items()}
    except (KeyError, TypeError, ValueError, AttributeError, HoldfastError):
        return None
    good = all(isinstance(getattr(spec, name), str) for name in _TEXTS)
    good = good and all(isinstance(getattr(spec, name), int | float) for name in _NUMBERS)
    good = good and all(isinstance(getattr(spec, name), int | float | None) for name in _LIMITS)
    return replace(spec, egress=egress, labels=labels) if good else None
