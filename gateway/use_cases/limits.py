"""Limits of owners, projects and keys: what holds for a request and how much of it is used, and their change by an operator.

Owns what is shown of them. They are kept in ``gateway.tenants``, and enforced by ``tenants.rates`` and ``admission``. Called by faces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.limits import QUOTAS, RATES, Limits, check_subject, limits_for, write_limits
from gateway.identity.principal import Principal
from gateway.identity.tenants import Tenants
from gateway.tenants.rates import burst_of

from .service import Gateway

SUBJECTS_MOST: Final = 5_000


@dataclass(frozen=True, slots=True)
class Held:
    """A limit that holds: its subject and name, the most, and what is used of a quota or left of a rate now."""

    subject: str
    name: str
    most: float
    used: float | None = None
    left: float | None = None


async def held(gateway: Gateway, principal: Principal) -> list[Held]:
    """Every limit that holds for the caller. Raises ``placement_unavailable``."""
    limits = dict(limits_for(gateway.tenants.tenants.limits, principal.member, principal.project, principal.key_id))
    mine, default = f"owner:{principal.member}", gateway.settings.admission.owner_quota
    own = limits.get(mine, Limits())
    if default and not own.has_quotas:
        own = replace(own, sandboxes=default.sandboxes, cores=default.cores, memory_bytes=default.memory_bytes)
        limits = {mine: own} | {subject: one for subject, one in limits.items() if subject != mine}
    found: list[Held] = []
    for subject, one in limits.items():
        if one.has_quotas:
            used = await gateway.store.usage_of(principal.member if subject == mine else f"={subject}")
            amounts = dict(zip(QUOTAS, (used.sandboxes, used.cores, used.memory_bytes), strict=True))
            found += [Held(subject, name, most, used=amounts[name]) for name in QUOTAS if (most := getattr(one, name)) is not None]
        for name in RATES:
            if (most := getattr(one, name)) is not None:
                left = await gateway.store.rate_left(f"{subject} {name}", most, burst_of(most))
                found.append(Held(subject, name, most, left=left))
    return found


def every(gateway: Gateway) -> Mapping[str, Limits]:
    """The limits of every subject that has some."""
    return dict(sorted(gateway.tenants.tenants.limits.items()))


async def put(gateway: Gateway, subject: str, limits: Limits) -> None:
    """Set all limits of a subject; with none it has none any more. Raises ``invalid_argument``, ``not_found``, ``quota_exceeded``."""
    check_subject(subject)
    kind, _, name = subject.partition(":")

    def decide(tenants: Tenants) -> dict[str, str | None]:
        if kind == "project" and name not in tenants.projects:
            raise HoldfastError("not_found", f"there is no project {name!r}", hint="`holdfast project list` shows all projects")
        if subject not in tenants.limits and len(tenants.limits) >= SUBJECTS_MOST:
            raise HoldfastError("quota_exceeded", f"{SUBJECTS_MOST} owners, projects and keys have limits already")
        return {f"limits:{subject}": write_limits(limits) if limits else None}

    await gateway.tenants.change(decide)


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Limits from a map of numbers by name; None is no limit. Raises ``invalid_argument``."""
    unknown = sorted(values.keys() - {*QUOTAS, *RATES})
    if unknown:
        raise HoldfastError("invalid_argument", f"there is no limit {unknown[0][:60]!r}", hint=f"limits are {', '.join((*QUOTAS, *RATES))}")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        whole = name != "cores"
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53 or (whole and value != int(value)):
            raise HoldfastError("invalid_argument", f"{name} must be a {'whole ' if whole else ''}number, 0 or more")
        if name in RATES and value < 1:
            raise HoldfastError("invalid_argument", f"{name} must be at least 1", hint="revoke the key to end what it does")
        found[name] = int(value) if whole else float(value)
    return Limits(**found)
