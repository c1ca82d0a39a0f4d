"""The owner of a file that the agent makes: the user asked for, else the file's earlier owner, else the sandbox's own user.

Owns that order and the giving away; the accounts are read by ``users``. An agent that may not give files away keeps them, unless
the client asked for an owner by name. Called by whatever creates files.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass

from session_agent.agent.process.users import find_user


@dataclass(frozen=True, slots=True)
class Owner:
    """A numeric user and group; ``asked``: it is an error when they cannot have it."""

    uid: int
    gid: int
    asked: bool = True

    def give(self, target: int | str, *, directory: int | None = None) -> None:
        """Make an open file, or a path whose final link is not followed, theirs. Raises ``OSError``."""
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
    """``asked`` by the client; ``usual`` for what is new without such a request, None: the agent itself."""

    asked: Owner | None = None
    usual: Owner | None = None

    def of(self, replaced: os.stat_result | None) -> Owner | None:
        """Who gets a file that is new, or that replaces another."""
        if self.asked is not None:
            return self.asked
        if replaced is not None:
            return Owner(replaced.st_uid, replaced.st_gid, asked=False)
        return self.usual

    def give_new(self, target: int | str, *, directory: int | None = None) -> None:
        """Give away something that is new. Raises ``OSError``."""
        owner = self.of(None)
        if owner is not None:
            owner.give(target, directory=directory)


AGENT = Ownership()
"""What is made stays the agent's."""


class _Settings(Protocol):
    @property
    def user(self) -> str: ...

    @property
    def command_ids(self) -> int: ...


class OwnerContext(Protocol):
    """What is needed of the agent."""

    @property
    def settings(self) -> _Settings: ...


def owner_param(context: OwnerContext, params: dict[str, Any], key: str = "user") -> Ownership:
    """The ownership that ``key`` names: a name or uid of the sandbox, either with ``:group``; the sandbox's own user when absent."""
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
