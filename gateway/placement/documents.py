"""A sandbox's specification as JSON and back: the ``doc`` of its record.

Owns the two nested records (network egress and cluster options). A document may come from a newer replica, so unknown fields are
ignored. Called by ``store``.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.model.options import Egress, Options, Port, Reach, Toleration, Volume
from gateway.model.records import SandboxSpec


def write_spec(spec: SandboxSpec) -> bytes:
    return orjson.dumps(spec)


def write_egress(egress: Egress) -> bytes:
    return orjson.dumps(egress)


def read_spec(document: bytes | str, egress: str = "") -> SandboxSpec:
    """``egress`` is a later change of what it may reach. Raises ValueError or TypeError for what no version of the gateway wrote."""
    body = _known(SandboxSpec, orjson.loads(document))
    body["egress"] = egress_from(orjson.loads(egress) if egress else body.get("egress"))
    body["options"] = options_from(body.get("options"))
    return SandboxSpec(**body)


def egress_from(body: Any) -> Egress:
    """From a map; an empty one reaches nothing."""
    if not body:
        return Egress()
    known = _known(Egress, body)
    known["reaches"] = tuple(_reach(one) for one in known.get("reaches") or ())
    known["domains"] = tuple(known.get("domains") or ())
    return Egress(**known)


def options_from(body: Any) -> Options:
    """From a map; an empty one requests nothing."""
    if not body:
        return Options()
    known = _known(Options, body)
    known["volumes"] = tuple(Volume(**_known(Volume, one)) for one in known.get("volumes") or ())
    known["tolerations"] = tuple(Toleration(**_known(Toleration, one)) for one in known.get("tolerations") or ())
    known["pull_secrets"] = tuple(known.get("pull_secrets") or ())
    return Options(**known)


def _reach(body: Any) -> Reach:
    known = _known(Reach, body)
    return Reach(str(known["cidr"]), tuple(Port(**_known(Port, one)) for one in known.get("ports") or ()))


def _known(kind: Any, body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ValueError(f"{kind.__name__} is not a map")
    return {name: value for name, value in body.items() if name in kind.__dataclass_fields__}
