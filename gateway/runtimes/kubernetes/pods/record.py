"""What a pod says about the sandbox it is: an annotation, written when it is made and read back from any list.

Owns its form both ways. Everything needed to rebuild the placement record is in it; the token is not. A pod whose annotation cannot
be read is not ours. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import network_map, options_map, read_network, read_options
from gateway.model.options import Egress, Options
from gateway.runtimes.base import Order
from gateway.runtimes.kubernetes.names import NETWORK, RECORD


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The part of an order that outlives its making."""

    sandbox_id: str
    incarnation: str
    owner: str
    image: str
    cores: float
    memory_bytes: int
    labels: dict[str, str]
    egress: Egress
    options: Options


def annotations_of(order: Order) -> dict[str, str]:
    """The annotations of an order's pod."""
    body = {
        "sandbox_id": order.sandbox_id,
        "incarnation": order.incarnation,
        "owner": order.owner,
        "image": order.image,
        "cores": order.cores,
        "memory_bytes": order.memory_bytes,
        "labels": order.labels,
        "options": options_map(order.options),
    }
    return {RECORD: orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode(), NETWORK: network_annotation(order.egress)}


def network_annotation(egress: Egress) -> str:
    return orjson.dumps(network_map(egress), option=orjson.OPT_SORT_KEYS).decode()


def read_record(pod_annotations: dict[str, Any]) -> PodRecord | None:
    """The record, None where there is none that can be read."""
    try:
        body = orjson.loads(pod_annotations[RECORD])
        return PodRecord(
            sandbox_id=str(body["sandbox_id"]),
            incarnation=str(body["incarnation"]),
            owner=str(body["owner"]),
            image=str(body["image"]),
            cores=float(body["cores"]),
            memory_bytes=int(body["memory_bytes"]),
            labels={str(name): str(value) for name, value in body["labels"].items()},
            egress=read_network(orjson.loads(pod_annotations.get(NETWORK) or "{}")),
            options=read_options(body.get("options") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, HoldfastError):
        return None
