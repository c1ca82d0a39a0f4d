"""Describe sandboxes: one record, the outcome of a pending one, or a page of an owner's records.

Owns how far a filtered listing reads. Called by faces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal, Scope, space_of
from gateway.identity.tenants import shared_scopes
from gateway.model.records import Page, Record
from gateway.model.selectors import Selector, selects
from gateway.placement.errors import RebuildingError

from .outcome import wait_until_settled
from .service import Gateway

_PAGE_LOOKS: Final = 10
"""Most store pages that one filtered listing reads."""
_PAGE: Final = 1000
_MOST_ALL: Final = 20_000
"""Most records of one owner that are read at once."""


async def describe(gateway: Gateway, principal: Principal, name: str) -> Record:
    """The record, also of a failed sandbox. Raises ``sandbox_not_found`` or ``sandbox_gone``."""
    return await gateway.record(principal.owner, name)


async def ready(gateway: Gateway, principal: Principal, name: str) -> Record:
    """The record of a sandbox that can be used. Also raises ``sandbox_not_ready`` or ``sandbox_failed``."""
    return await gateway.ready(principal.owner, name)


async def wait(gateway: Gateway, principal: Principal, name: str, timeout_s: float | None) -> Record:
    """The record once it is ready or failed. Raises ``wait_timeout`` when it is neither in time."""
    return await wait_until_settled(gateway, principal.owner, name, timeout_s or gateway.settings.rest.ready_timeout_s)


async def wait_or_look(gateway: Gateway, principal: Principal, name: str, timeout_s: float | None) -> Record:
    """The record once it is ready or failed, or as it is when it is neither in time."""
    try:
        return await wait(gateway, principal, name, timeout_s)
    except HoldfastError as error:
        if error.code != "wait_timeout":
            raise
    return await describe(gateway, principal, name)


async def all_owned(gateway: Gateway, principal: Principal, labels: Sequence[tuple[str, str]]) -> list[Record]:
    """All of the owner's records that have these labels, for a listing in another order than the store's. Raises ``request_too_large``."""
    found: list[Record] = []
    cursor, read = None, 0
    while read <= _MOST_ALL:
        page = await list_owned(gateway, principal, (), cursor, _PAGE)
        found += [one for one in page.records if all(one.spec.labels.get(name) == value for name, value in labels)]
        cursor, read = page.cursor, read + len(page.records)
        if cursor is None:
            return found
    hint = "list them with GET /sandboxes, which has pages"
    raise HoldfastError("request_too_large", f"there are more than {_MOST_ALL} sandboxes", hint=hint)


async def list_owned(gateway: Gateway, principal: Principal, labels: Selector, cursor: str | None, limit: int) -> Page:
    """At most ``limit`` of the owner's records that these labels select."""
    return await _page(gateway, labels, cursor, limit, lambda at, most: gateway.store.list_owned(principal.owner, cursor=at, limit=most))


async def list_others(gateway: Gateway, principal: Principal, labels: Selector, cursor: str | None, limit: int) -> Page:
    """About ``limit`` records of everybody whom the key may look at: of all owners for an operator, of the members of its project where
    the project's setting permits it. Raises ``scope_missing`` for any other key."""
    if Scope.ADMIN in principal.scopes:
        return await _page(gateway, labels, cursor, limit, lambda at, most: gateway.store.list_everyone(cursor=at, limit=most))
    project = gateway.tenants.tenants.projects.get(principal.project)
    if project is None or not shared_scopes(project, principal):
        principal.require(Scope.ADMIN)
        raise AssertionError
    members = sorted(project.members)

    async def look(at: str | None, most: int) -> Page:
        member, _, inner = (at or "").partition("~")
        if member and member not in members:  # it has left meanwhile
            member = next((one for one in members if one > member), "")
            inner = ""
            if not member:
                return Page([], None)
        member = member or members[0]
        page = await gateway.store.list_owned(space_of(member, project.name), cursor=inner or None, limit=most)
        following = members[members.index(member) + 1 :]
        after = f"{member}~{page.cursor}" if page.cursor else f"{following[0]}~" if following else None
        return Page(page.records, after)

    return await _page(gateway, labels, cursor, limit, look)


async def _page(
    gateway: Gateway, labels: Selector, cursor: str | None, limit: int, look: Callable[[str | None, int], Awaitable[Page]]
) -> Page:
    """The records with these labels in some pages of ``look``, which takes a cursor and a limit."""
    if not await gateway.store.complete():
        raise RebuildingError  # an incomplete list would be taken for complete
    found: list[Record] = []
    for _ in range(_PAGE_LOOKS):
        page = await look(cursor, limit - len(found))
        found += [one for one in page.records if selects(labels, one.spec.labels)]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            break
    return Page(found, cursor)
