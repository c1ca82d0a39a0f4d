"""Validation of the requests that the node receives.

Owns the limits of a create request. The gateway has checked most fields before; the node checks all of them again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.process.ulimits import read_ulimits
from session_agent.node.kernel import network
from session_agent.node.kernel.cgroups import Limits
from session_agent.node.settings import MAX_NAME, MAX_SANDBOX_ID

_ID = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_SANDBOX_ID - 1}}}")
_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME - 1}}}")
_HEX = re.compile(r"[0-9a-f]{1,128}")
_MAX_MAP_BYTES = 256 << 10
MIN_MEMORY = 32 << 20
_MAX_DISK = 8 << 40
"""A file of ext4 cannot be twice as large, and writing its tables would take minutes."""


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The request for one sandbox. `disk` and `limits` are bytes and cores."""

    sandbox_id: str
    """Unique on the machine."""
    incarnation: str
    token: str
    image: str
    limits: Limits
    disk: int | None
    env: dict[str, str]
    labels: dict[str, str]
    owner: str
    network: bool
    shm_bytes: int | None = None
    entrypoint: bool | list[str] = False
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    name: str = ""
    """What its owner calls it; "" from a gateway of a version before, whose ids are names."""
    branch_point: str = ""
    """What ``Sandboxes.hold`` returned: the sandbox begins with those files and variables. It needs neither once it was created."""

    @property
    def host_name(self) -> str:
        return (self.name or self.sandbox_id)[:MAX_NAME]

    def __repr__(self) -> str:
        return f"CreateRequest({self.sandbox_id}, {self.image})"


def parse_create(body: dict[str, Any], default_pids: int) -> CreateRequest:
    """The request in a map. Raises HoldfastError(invalid_argument, unsupported)."""
    if body.get("network"):
        network.check_available()
    cpu = _number(body, "cpu", 1.0, 0.01, 1024)
    memory = int(_number(body, "memory", 1 << 30, MIN_MEMORY, 1 << 50))
    pids = int(_number(body, "pids", default_pids, 8, 1 << 20))
    disk = body.get("disk")
    return CreateRequest(
        sandbox_id=sandbox_id(body),
        incarnation=_text(body, "incarnation", _HEX),
        token=_text(body, "token", _HEX),
        image=_text(body, "image", re.compile(r"[\x21-\x7e]{1,512}")),
        limits=Limits(float(cpu), memory, pids),
        disk=None if disk is None else int(_number(body, "disk", 0, 1 << 20, _MAX_DISK)),
        env=_strings(body, "env"),
        labels=_strings(body, "labels"),
        owner=str(body.get("owner") or "")[:256],
        network=bool(body.get("network")),
        shm_bytes=None if body.get("shm") is None else int(_number(body, "shm", 0, 1 << 16, 1 << 50)),
        entrypoint=_entrypoint(body.get("entrypoint")),
        ulimits=read_ulimits(body.get("ulimits")),
        name="" if body.get("name") is None else _text(body, "name", _NAME),
        branch_point="" if body.get("branch_point") is None else branch_point(body),
    )


def _entrypoint(value: Any) -> bool | list[str]:
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise HoldfastError("invalid_argument", "entrypoint must be true, false or a list of strings without NUL")
    return value


def sandbox_id(body: dict[str, Any]) -> str:
    return _text(body, "sandbox_id", _ID)


def port(body: dict[str, Any]) -> int:
    return int(_number({"port": body.get("port") or 0}, "port", 0, 1, 65535))


def branch_point(body: dict[str, Any]) -> str:
    return _text(body, "branch_point", _HEX)


def _text(body: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise HoldfastError("invalid_argument", f"{key} must be a string that matches {pattern.pattern}")
    return value


def _number(body: dict[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        bounds = f"from {low} to {high}" if high < 1 << 40 else f"of bytes, at least {int(low) >> 20}Mi and at most {int(high) >> 40}Ti"
        raise HoldfastError("invalid_argument", f"{key} must be a number {bounds} on this machine")
    return value


def _strings(body: dict[str, Any], key: str) -> dict[str, str]:
    value = body.get(key) or {}
    if not isinstance(value, dict):
        raise HoldfastError("invalid_argument", f"{key} must be a map of strings")
    size = 0
    for name, text in value.items():
        if not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise HoldfastError("invalid_argument", f"{key} must be a map of strings without NUL")
        size += len(name) + len(text)
    if size > _MAX_MAP_BYTES:
        raise HoldfastError("invalid_argument", f"{key} is larger than {_MAX_MAP_BYTES} bytes")
    return dict(value)
