"""Finds the sandbox that a word names: its id, or the beginning of a generated one, with or without ``sb-``, as with docker's ids.

Owns what counts as a beginning. A chosen id is never shortened: ``worker-1`` means no ``worker-10``, also where the first is gone.
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
"""Hexadecimal digits of a generated id."""
_HEX = frozenset("0123456789abcdef")
T = TypeVar("T")


def whole_id(client: SandboxClient, word: str) -> str | None:
    """The generated id that ``word`` begins, None where there is none. Raises ``UsageError`` where several begin so."""
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
    """What ``use`` makes of the sandbox; its first request shows whether ``word`` is an id."""
    try:
        return use(client.get_sandbox(word))
    except SandboxNotFoundError:
        full = whole_id(client, word)
        if full is None:
            raise
        return use(client.get_sandbox(full))


@contextlib.contextmanager
def opened(client: SandboxClient, word: str) -> Iterator[Sandbox]:
    """The sandbox, attached, closed at the end."""
    with contextlib.closing(found(client, word, _attached)) as sandbox:
        yield sandbox


def _attached(sandbox: Sandbox) -> Sandbox:
    try:
        sandbox._fallback()
    except BaseException:
        sandbox.close()
        raise
    return sandbox
