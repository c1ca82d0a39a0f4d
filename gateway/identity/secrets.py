"""The deployment's secrets: they sign placement tickets, and the tokens of agents derive from them.

Owns their files and how many are accepted at a time. Called by the entry points of gateway and controller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SECRET_LEAST: Final = 32
_SECRETS_MOST: Final = 5


def read_secrets(path: Path, others: Path) -> tuple[str, ...]:
    """The deployment's signing secret, followed by the other accepted secrets in the file ``others`` (one a line; the file may be missing).

    Several secrets are accepted while the deployment rotates its secret; only the first is used for new signatures. Raises ``OSError`` when
    a file cannot be read, ``ValueError`` when a secret is too short or there are too many.
    """
    try:
        further = others.read_text().splitlines()
    except FileNotFoundError:
        further = []
    found = tuple(dict.fromkeys((path.read_text().strip(), *(line.strip() for line in further if line.strip()))))
    if len(found) > _SECRETS_MOST or any(len(secret) < _SECRET_LEAST for secret in found):
        raise ValueError(f"{path} and {others} must hold 1 to {_SECRETS_MOST} secrets, each of at least {_SECRET_LEAST} characters")
    return found
