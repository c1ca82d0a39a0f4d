"""The sandbox that a word names: its id, or the beginning of a generated one, with or without ``sb-``, as with docker's ids.

Owns what counts as a beginning. A chosen id is never shortened: ``worker-1`` means no ``worker-10``, also where the first is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from holdfast import SandboxClient, SandboxNotFoundError
from holdfast.cli.words import bad

if TYPE_CHECKING:
    from holdfast import Sandbox

_PREFIX = "sb-"
_DIGITS = 16
"""Hexadecimal digits of a generated id."""
_HEX = frozenset("0123456789abcdef")
T = TypeVar("T")


def whole_id(client: SandboxClient, word: str) -> str | None:
    """The generated id that ``word`` begins, None where there is none. Raises ``UsageError`` where several begin so."""
    if not _is_beginning(word):
        return None
    wanted = _PREFIX + word.removeprefix(_PREFIX)
    ids = [info.sandbox_id for info in client.list_sandboxes() if info.sandbox_id.startswith(wanted)]
    found = [id_ for id_ in ids if len(id_) == len(_PREFIX) + _DIGITS and _HEX.issuperset(id_.removeprefix(_PREFIX))]
    if len(found) > 1:
        raise bad(f"{word} is the beginning of {len(found)} ids: {', '.join(sorted(found)[:5])}", hint="write more of it")
    return found[0] if found else None


def _is_beginning(word: str) -> bool:
    digits = word.removeprefix(_PREFIX)
    return 0 < len(digits) < _DIGITS and _HEX.issuperset(digits)


@contextlib.contextmanager
def opened(client: SandboxClient, word: str) -> Iterator[Sandbox]:
    """The sandbox, closed at the end."""
    sandbox = client.get_sandbox(word)
    try:
        if _is_beginning(word):
            try:
                sandbox._fallback()  # attaches: the service knows whether this is an id
            except SandboxNotFoundError:
                full = whole_id(client, word)
                if full is None:
                    raise
                sandbox.close()
                sandbox = client.get_sandbox(full)
        yield sandbox
    finally:
        sandbox.close()


def asked(client: SandboxClient, word: str, question: Callable[[Sandbox], T]) -> T:
    """What REST answers about the sandbox."""
    try:
        return question(client.get_sandbox(word))
    except SandboxNotFoundError:
        full = whole_id(client, word)
        if full is None:
            raise
        return question(client.get_sandbox(full))
