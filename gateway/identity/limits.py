"""Limits of owners, projects and keys as values: how much they may have at a time, and how much they may do in a minute.

Owns these values, their form as text, and which of them hold for a request. Set by an operator and kept with the projects and keys
(``tenants``), so a change holds on every replica within a second, without a restart. ``gateway.tenants.rates`` enforces what is a rate,
``use_cases.admission`` what is a quota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

import orjson
from holdfast_wire.errors import HoldfastError

from .principal import OWNER, PROJECT

EVERY_OWNER: Final = "owner:*"
"""The subject whose limits hold for each owner that has none of its own."""
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
RATES: Final = ("creates_per_minute", "requests_per_minute", "output_bytes_per_minute", "upload_bytes_per_minute")
QUOTAS: Final = ("sandboxes", "cores", "memory_bytes")


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit."""

    sandboxes: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    creates_per_minute: int | None = None
    requests_per_minute: int | None = None
    output_bytes_per_minute: int | None = None
    upload_bytes_per_minute: int | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in (*QUOTAS, *RATES))

    @property
    def has_rates(self) -> bool:
        return any(getattr(self, name) is not None for name in RATES)

    @property
    def has_quotas(self) -> bool:
        return any(getattr(self, name) is not None for name in QUOTAS)


def write_limits(limits: Limits) -> str:
    return orjson.dumps({name: value for name, value in asdict(limits).items() if value is not None}).decode()


def read_limits(text: str) -> Limits:
    """Limits of a later version that this one does not know are ignored. Raises ``ValueError`` or ``TypeError`` for what none wrote."""
    known = {field.name for field in fields(Limits)}
    found = {name: value for name, value in orjson.loads(text).items() if name in known}
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in found.values()):
        raise ValueError("a limit is not a number")
    return Limits(**found)


def check_subject(subject: str) -> str:
    """``owner:NAME``, ``owner:*``, ``project:NAME`` or ``key:ID``. Raises ``invalid_argument``."""
    kind, _, name = subject.partition(":")
    form = {"owner": OWNER, "project": PROJECT, "key": _KEY_ID}.get(kind)
    if form is None or (subject != EVERY_OWNER and not form.fullmatch(name)):
        hint = "owner:NAME, owner:* (each owner without limits of its own), project:NAME or key:ID"
        raise HoldfastError("invalid_argument", f"{subject[:100]!r} cannot have limits", hint=hint)
    return subject


def limits_for(limits: Mapping[str, Limits], member: str, project: str, key_id: str) -> list[tuple[str, Limits]]:
    """The limits that hold for a request of a member in a project with a key, with their subjects. Those of every owner name the owner."""
    if not limits:
        return []
    found = []
    mine = limits.get(f"owner:{member}") or limits.get(EVERY_OWNER)
    if mine:
        found.append((f"owner:{member}", mine))
    if project and (of_project := limits.get(f"project:{project}")):
        found.append((f"project:{project}", of_project))
    if key_id and (of_key := limits.get(f"key:{key_id}")):
        found.append((f"key:{key_id}", of_key))
    return found
