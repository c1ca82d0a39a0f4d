"""Finds the sandbox that a word names: by its id, or by the beginning of a generated id, with or without ``sb-``, as for docker's ids.

Owns what counts as a beginning. An id that the user has chosen cannot be shortened: ``worker-1`` never means ``worker-10``, even if
``worker-1`` does not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from holdfast import SandboxClient, SandboxNotFoundError
from holdfast.cli.command_line import UsageError

if TYPE_CHECKING:
    from holdfast import Sandbox

_PREFIX = "sb-"
_DIGITS = 16
"""Number of hexadecimal digits of a generated id."""
_HEX = frozenset("0123456789abcdef")
T = TypeVar("T")


def whole_id(client: SandboxClient, word: str) -> str | None:
    """The generated id that begins with ``word``; None if there is none. Raises ``UsageError`` if there are several."""
    digits = word.removeprefix(_PREFIX)
    if not 0 < len(digits) < _DIGITS or not _HEX.issuperset(digits):
        return None
    ids = [info.sandbox_id for info in client.list_sandboxes() if info.sandbox_id.startswith(_PREFIX + digits)]
    whole = [id_ for id_ in ids if len(id_) == len(_PREFIX) + _DIGITS and _HEX.issuperset(id_.removeprefix(_PREFIX))]
    if len(whole) > 1:
        shown = ", ".join(sorted(whole)[:5])
        raise UsageError(f"{word} is the beginning of {len(whole)} ids: {shown}", hint="write more characters of the id")
    return whole[0] if whole else None


def found(client: SandboxClient, word: str, use: Callable[[Sandbox], T]) -> T:
    """The result of ``use(sandbox)``; its first request shows whether ``word`` is an id."""
    try:
        return use(client.get_sandbox(word))
    except SandboxNotFoundError:
        full = whole_id(client, word)
        if full is None:
            raise
        return use(client.get_sandbox(full))


@contextlib.contextmanager
def opened(client: SandboxClient, word: str) -> Iterator[Sandbox]:
    """The sandbox, attached; it is closed at the end of the block."""
    with contextlib.closing(found(client, word, _attached)) as sandbox:
        yield sandbox


def _attached(sandbox: Sandbox) -> Sandbox:
    try:
        sandbox._fallback()
    except BaseException:
        sandbox.close()
        raise
    return sandbox
