"""The interface to the machine that runs a rollout's commands: the methods of a sandbox that most recipes use.

Owns ``Machine``, which ``holdfast.AsyncSandbox`` is, and which a folder on the bare machine is too where the two are compared
(``swe.bare``). What needs files, living shells or tunnels takes an ``AsyncSandbox``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypedDict, Unpack

from holdfast import CommandResult


class ExecOptions(TypedDict, total=False):
    """As those of ``AsyncSandbox.exec``."""

    cwd: str | None
    env: Mapping[str, str] | None
    user: str | None
    input: bytes | str | None
    timeout: float | None
    stderr: Literal["pipe", "stdout"]
    max_output_bytes: int | None
    keep: Literal["head", "tail", "both"]


class Machine(Protocol):
    """As ``holdfast.AsyncSandbox``."""

    @property
    def id(self) -> str: ...

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> CommandResult: ...

    async def delete(self) -> bool: ...
