"""Describe sandboxes: one record, the outcome of a pending one, or a page of an owner's records.

Owns how far a filtered listing reads. Called by faces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.identity.principal import Principal
from gateway.model.records import Page, Record
from gateway.placement.errors import RebuildingError

from .outcome import wait_until_settled
from .service import Gateway

_PAGE_LOOKS: Final = 10
"""Most store pages that one filtered listing reads."""


async def describe(gateway: Gateway, principal: Principal, name: str) -> Record:
    """The record, also of a failed sandbox. Raises ``sandbox_not_found`` or ``sandbox_gone``."""
    return await gateway.record(principal.owner, name)


async def ready(gateway: Gateway, principal: Principal, name: str) -> Record:
    """The record of a sandbox that can be used. Also raises ``sandbox_not_ready`` or ``sandbox_failed``."""
    return await gateway.ready(principal.owner, name)


async def wait(gateway: Gateway, principal: Principal, name: str, timeout_s: float | None) -> Record:
    """The record once it is ready or failed. Raises ``wait_timeout`` when it is neither in time."""
    return await wait_until_settled(gateway, principal.owner, name, timeout_s or gateway.settings.rest.ready_timeout_s)


async def list_owned(gateway: Gateway, principal: Principal, labels: Sequence[tuple[str, str]], cursor: str | None, limit: int) -> Page:
    """At most ``limit`` of the owner's records that have all of these labels."""
    if not await gateway.store.complete():
        raise RebuildingError  # an incomplete list would be taken for complete
    found: list[Record] = []
    for _ in range(_PAGE_LOOKS if labels else 1):
        page = await gateway.store.list_owned(principal.owner, cursor=cursor, limit=limit - len(found))
        found += [one for one in page.records if all(one.spec.labels.get(name) == value for name, value in labels)]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            break
    return Page(found, cursor)
