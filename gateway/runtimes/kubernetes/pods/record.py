"""The record of a sandbox on its pod: an annotation, written at creation and read back from any list.

Owns its form both ways. It holds everything needed to rebuild the placement record, but not the token. A pod without a readable
annotation is not one of this service. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import network_map, options_map, read_network, read_options
from gateway.model.options import Egress, Options
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.names import NETWORK, RECORD


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The part of a create request that is kept with the pod."""

    sandbox_id: str
    incarnation: str
    owner: str
    image: str
    cores: float
    memory_bytes: int
    labels: dict[str, str]
    egress: Egress
    options: Options


def annotations_of(request: CreateRequest) -> dict[str, str]:
    """The annotations of a request's pod."""
    body = {
        "sandbox_id": request.sandbox_id,
        "incarnation": request.incarnation,
        "owner": request.owner,
        "image": request.image,
        "cores": request.cores,
        "memory_bytes": request.memory_bytes,
        "labels": request.labels,
        "options": options_map(request.options),
    }
    return {RECORD: orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode(), NETWORK: network_annotation(request.egress)}


def network_annotation(egress: Egress) -> str:
    return orjson.dumps(network_map(egress), option=orjson.OPT_SORT_KEYS).decode()


def read_record(pod_annotations: dict[str, Any]) -> PodRecord | None:
    """The record, None where there is none or it cannot be read."""
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
