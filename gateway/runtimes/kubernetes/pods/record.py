"""The record of a sandbox on its pod: an annotation, written at creation and read back from any list.

Owns its form both ways. It holds everything needed to rebuild the placement record, but not the token. A pod without a readable
annotation is not one of this service. Pure.
"""

from __future__ import annotations

from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import network_map, options_map, read_network, read_options
from gateway.model.options import Egress
from gateway.runtimes.base import CreateRequest, SandboxStatus
from gateway.runtimes.kubernetes.names import NETWORK, RECORD


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


def read_record(pod_annotations: dict[str, Any]) -> SandboxStatus | None:
    """The sandbox as it was requested, None where there is no record or it cannot be read."""
    try:
        body = orjson.loads(pod_annotations[RECORD])
        return SandboxStatus(
            sandbox_id=str(body["sandbox_id"]),
            incarnation=str(body["incarnation"]),
            owner=str(body["owner"]),
            image=str(body["image"]),
            cores=float(body["cores"]),
            memory_bytes=int(body["memory_bytes"]),
            labels={str(name): str(value) for name, value in body["labels"].items()},
            egress=read_network(orjson.loads(pod_annotations.get(NETWORK) or "{}")),
            options=read_options(body.get("options") or {}),
            endpoint="",
            created_at=0.0,
        )
    except (KeyError, TypeError, ValueError, AttributeError, HoldfastError):
        return None
