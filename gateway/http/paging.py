"""Pages of lists that are in memory: at most ``limit`` rows after a cursor.

Owns the cursor, which is the place of the last row in the list's order: what exists throughout is in exactly one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.requests import Request

from gateway.http.request_fields import Fields

_MOST: Final = 1000
_CURSOR_CHARACTERS: Final = 8192


def paged(request: Request, name: str, rows: Iterable[Any], order: Callable[[Any], str], show: Callable[[Any], Any]) -> dict[str, Any]:
    """The answer of a list with ``?limit=&cursor=``: the rows of the page under ``name``, and the cursor of the next one, or null.

    Without either the answer has all rows in the order in which they are given. ``order`` is a text that no two rows have.
    """
    fields = Fields(dict(request.query_params))
    limit = fields.integer("limit", _MOST, least=1, most=_MOST) if fields.get("limit") is not None else None
    if limit is None and not fields.get("cursor"):
        return {name: [show(row) for row in rows], "cursor": None}
    after = fields.text("cursor", "", most=_CURSOR_CHARACTERS) or ""
    found = sorted((row for row in rows if order(row) > after), key=order)
    page = found if limit is None else found[:limit]
    return {name: [show(row) for row in page], "cursor": order(page[-1]) if len(page) < len(found) else None}


def latest_first(moment: float | None, name: str) -> str:
    """The order of rows by time, the latest first, and by name where times are equal."""
    return f"{2**53 - int((moment or 0.0) * 1_000_000):017d}:{name}"
