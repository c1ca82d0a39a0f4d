"""As whom a request acts in a sandbox, and what its paths mean: relative ones begin at that user's home.

Owns the choice of the user. E2B's templates have an account ``user``; in an image without it the image's own user acts, and relative paths
begin at the image's working directory.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.use_cases.accounts import Accounts

DEFAULT_USER: Final = "user"


@dataclass(frozen=True, slots=True)
class Actor:
    """``name`` and ``home`` are "" for the image's own user."""

    name: str
    home: str

    def path(self, text: str) -> str:
        """The path that ``text`` means. Raises ``invalid_path``."""
        if text.startswith("~"):
            if len(text) > 1 and text[1] != "/":
                raise HoldfastError("invalid_path", f"cannot expand the home of another user in {text[:200]!r}")
            text = self.home + text[1:] if self.home else f".{text[1:]}"
        if text.startswith("/"):
            return text
        return posixpath.normpath(posixpath.join(self.home, text))

    def command(self) -> dict[str, Any]:
        """The params of a command: its user, and the directory in which it starts if the request names none."""
        return {"user": self.name, "cwd": self.home} if self.name else {}

    def owner(self) -> dict[str, Any]:
        """The params of a file operation. As E2B's, it may change every file; what it creates belongs to the user."""
        return {"owner": self.name} if self.name else {}


def actor_of(accounts: Accounts, requested: str) -> Actor:
    """The actor for a requested user, "" for the default. Raises ``user_not_found``."""
    account = accounts.users.get(requested or DEFAULT_USER)
    if account is not None:
        return Actor(account.name, account.home)
    if requested:
        raise HoldfastError("user_not_found", f"invalid username: {requested[:100]!r}", hint="name a user of the image's /etc/passwd")
    return Actor("", "")


def text_of(message: dict[str, Any], name: str, *, required: bool = True) -> str:
    """A text field of a message; "" if it is left out and not required. Raises ``invalid_argument``."""
    value = message.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise HoldfastError("invalid_argument", f"{name} must be a text without NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise HoldfastError("invalid_argument", f"{name} must be a text that can be encoded as UTF-8") from None
    return value
