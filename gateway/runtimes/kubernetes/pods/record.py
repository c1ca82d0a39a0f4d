"""The specification of a sandbox on its pod: an annotation, written at creation and read back from any list.

A second annotation has what the sandbox may reach, which changes while it runs. A pod without readable annotations is not one of this
service. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.documents import read_spec, write_spec
from gateway.model.option_fields import network_map, options_map, read_network, read_options
from gateway.model.options import Egress
from gateway.model.records import SandboxSpec
from gateway.runtimes.kubernetes.names import NETWORK, RECORD

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("sandbox_id", "owner", "incarnation", "image", "cpu", "memory", "group", "request", "key_id"), (str,)),
    **dict.fromkeys(("cores", "memory_bytes", "ready_timeout_s"), (int, float)),
    **dict.fromkeys(("disk_bytes", "lifetime_s", "idle_timeout_s", "heartbeat_timeout_s", "group_ttl_s"), (int, float, NoneType)),
}


def annotations_of(spec: SandboxSpec) -> dict[str, str]:
    """The annotations of a sandbox's pod."""
    return {RECORD: write_spec(spec).decode(), NETWORK: network_annotation(spec.egress)}


def network_annotation(egress: Egress) -> str:
    return orjson.dumps(network_map(egress), option=orjson.OPT_SORT_KEYS).decode()


def read_record(pod_annotations: dict[str, Any]) -> SandboxSpec | None:
    """The requested specification; None if it cannot be read, because other clients of the cluster may write annotations."""
    try:
        spec = read_spec(pod_annotations[RECORD])
        egress = read_network(orjson.loads(pod_annotations.get(NETWORK) or "{}"))
        read_options(options_map(spec.options))
        good = all(isinstance(text, str) for text in spec.labels.values())
    except (KeyError, TypeError, ValueError, AttributeError, HoldfastError):
        return None
    if not good or not all(isinstance(getattr(spec, name), kinds) for name, kinds in _KINDS.items()):
        return None
    return spec if spec.egress == egress else replace(spec, egress=egress)
