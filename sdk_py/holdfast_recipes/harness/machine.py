"""Where commands of a rollout run: the little that most of the recipes need of a sandbox.

Owns ``Machine``, which ``holdfast.AsyncSandbox`` is, and which a folder on the bare machine is too where the two are compared
(``swe.bare``). What needs files, living shells or tunnels takes an ``AsyncSandbox``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from holdfast import CommandResult


class Machine(Protocol):
    """As ``holdfast.AsyncSandbox``."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        input: bytes | str | None = None,  # noqa: A002
        timeout: float | None = None,
        stderr: Literal["pipe", "stdout"] = "pipe",
        max_output_bytes: int | None = None,
        keep: Literal["head", "tail", "both"] = "head",
    ) -> CommandResult: ...

    async def delete(self) -> bool: ...
