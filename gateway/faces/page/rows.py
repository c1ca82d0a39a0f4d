"""The rows of the page: its files, signing in and out, and below ``/ui/api`` the routes of REST, which a session of the page permits there.

Owns this table. A session permits nothing outside of it: the cookie opens neither REST itself nor a preview. The rows of REST are given by
the entry point, because no face imports another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.faces.table import PUBLIC, Face, Row
from gateway.identity.principal import Scope

from . import files, sign_in

HOME: Final = "/ui"
API: Final = f"{HOME}/api"


def page_face(rest: Sequence[Row]) -> Face:
    """The face, with the rows of REST that need a key."""
    return Face(
        "page",
        (
            Row("GET", HOME, PUBLIC, files.index),
            Row("GET", f"{HOME}/session", PUBLIC, sign_in.read),
            Row("POST", f"{HOME}/session", PUBLIC, sign_in.begin),
            Row("DELETE", f"{HOME}/session", PUBLIC, sign_in.end),
            Row("POST", f"{HOME}/links", Scope.READ, sign_in.link),
            *(replace(row, path=API + row.path, grant=sign_in.grant) for row in rest if row.scope != PUBLIC),
            Row("GET", HOME + "/{path:path}", PUBLIC, files.read),
        ),
        home=HOME,
    )
