"""Names of sandboxes: what an owner calls a sandbox, and the id that it has everywhere else.

Owns the translation in both directions. A name is unique among the sandboxes of one owner; the id is the name and a digest of the owner, so
it is unique in the whole service. Requests and answers have names. Records, runtimes and logs have ids. Pure: an id needs no lookup, and is
the same after the store was wiped. Called by ``use_cases.service`` for requests and by ``records`` for answers.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator
from typing import Final

TAG_CHARACTERS: Final = 10
"""50 bits. If two owners ever had the same tag, a name of one would be refused to the other, but never shown: owners are compared too."""


def id_of(owner: str, name: str) -> str:
    """The id of the owner's sandbox of this name."""
    return f"{name}-{_tag(owner)}"


def name_of(owner: str, sandbox_id: str) -> str:
    """What the owner calls the sandbox. An id without the owner's tag, as versions before gave, is its own name."""
    return sandbox_id.removesuffix(f"-{_tag(owner)}")


def ids_of(owner: str, name: str) -> Iterator[str]:
    """The ids under which the owner's sandbox may be recorded, the likely one first; a sandbox of a version before has its name alone."""
    yield id_of(owner, name)
    if name_of(owner, name) == name:  # else it would be the id of another one of the owner's sandboxes
        yield name


@functools.lru_cache(4096)
def _tag(owner: str) -> str:
    digest = hashlib.sha256(b"owner:" + owner.encode()).digest()
    return base64.b32encode(digest).decode()[:TAG_CHARACTERS].lower()
