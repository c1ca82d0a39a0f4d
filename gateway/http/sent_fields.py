"""The fields of a request's head, by name: for what is asked several times of each request.

Owns which of several fields of one name counts: the first, as with Starlette's ``headers``, which reads the whole head for each question.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

_FIELDS: Final = "holdfast.fields"


def sent_fields(scope: Scope) -> dict[bytes, bytes]:
    """Names in small letters. The dictionary is shared by all who ask during the request: it is not changed."""
    found: dict[bytes, bytes] | None = scope.get(_FIELDS)
    if found is None:
        found = scope[_FIELDS] = dict(reversed(scope["headers"]))
    return found
