"""The ids of commands that requests start: each contains the time of its creation, or derives from an idempotency key.

Owns their form. Called by ``execute``, and by ``faces.orchard`` for the ids of repeated requests.
"""

from __future__ import annotations

import hashlib
import secrets
import time


def new_command_id() -> str:
    """A command id that contains its time of creation."""
    return f"j{int(time.time() * 1000):012x}{secrets.token_hex(8)}"


def command_id_of_key(owner: str, key: str) -> str:
    """The command id of an idempotency key: the same key of the same owner is the same command."""
    return "k" + hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()[:32]


def created_at(command_id: str) -> float | None:
    """The time in an id of ``new_command_id``; None for one derived from an idempotency key."""
    try:
        return int(command_id[1:13], 16) / 1000 if command_id[0] == "j" else None
    except ValueError:
        return None
