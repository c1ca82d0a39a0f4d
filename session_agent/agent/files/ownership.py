"""The owner of files that the agent creates: the requested user, else the owner of the replaced file, else the sandbox's default user.

Owns that order and changing the owner; ``users`` reads the accounts. If the agent may not change owners, files stay its own; that is an
error only if the client requested an owner. Called by everything that creates files.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass

from session_agent.agent.context import AgentContext
from session_agent.agent.process.users import find_user


@dataclass(frozen=True, slots=True)
class Owner:
    """A uid and gid. ``asked``: the client requested them, so it is an error if the owner cannot be set."""

    uid: int
    gid: int
    asked: bool = True

    def give(self, target: int | str, *, directory: int | None = None) -> None:
        """Set the owner of an open file, or of a path, whose final link is not followed. Raises ``OSError``."""
        try:
            if isinstance(target, str):
                os.chown(target, self.uid, self.gid, dir_fd=directory, follow_symlinks=False)
            else:
                state = os.fstat(target)
                if (state.st_uid, state.st_gid) != (self.uid, self.gid):
                    os.fchown(target, self.uid, self.gid)
        except PermissionError:
            if self.asked:
                raise


@dataclass(frozen=True, slots=True)
class Ownership:
    """``asked``: the owner that the client requested; ``usual``: the default owner of new files, None for the agent itself."""

    asked: Owner | None = None
    usual: Owner | None = None

    def of(self, replaced: os.stat_result | None) -> Owner | None:
        """The owner of a file that is new (None) or replaces another."""
        if self.asked is not None:
            return self.asked
        if replaced is not None:
            return Owner(replaced.st_uid, replaced.st_gid, asked=False)
        return self.usual

    def give_new(self, target: int | str, *, directory: int | None = None) -> None:
        """Set the owner of a new file or directory. Raises ``OSError``."""
        owner = self.of(None)
        if owner is not None:
            owner.give(target, directory=directory)


AGENT = Ownership()
"""New files belong to the agent's own user."""


def owner_param(context: AgentContext, params: dict[str, Any], key: str = "user") -> Ownership:
    """The ownership that ``key`` requests: a name or uid, optionally with ``:group``; without it the sandbox's default user."""
    value = params.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int) or value == ""):
        raise HoldfastError("invalid_argument", f"{key} must be a user name or a uid, not {type(value).__name__}")
    usual = context.settings.user
    return Ownership(
        asked=None if value is None else _find(str(value), asked=True),
        usual=_find(usual, asked=False) if usual and value is None else None,
    )


def _find(wanted: str, *, asked: bool) -> Owner:
    user = find_user(wanted)
    return Owner(user.uid, user.gid, asked)
