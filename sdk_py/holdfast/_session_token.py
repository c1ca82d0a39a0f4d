"""The token with which one client passes its session to another: ``sandbox.session_token()`` returns it, ``client.take_over`` accepts it.

Owns the token's form, which is private: a prefix and a URL-safe text. It holds the session's secret, so no message and no
``repr`` shows it. ``read`` validates untrusted input.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.fast_dataclass import dataclass, field
from holdfast_wire.limits import ID_BYTES

from holdfast._arguments import is_identifier
from holdfast._errors import InvalidArgumentError

_PREFIX = "hfs_"
_MOST_CHARACTERS = 2048
_LEAST_HEARTBEAT_S = 0.1
_MOST_HEARTBEAT_S = 86_400.0 * 366


@dataclass(frozen=True, slots=True)
class SessionToken:
    """One session of one sandbox. ``heartbeat_s``: how often its holder has to send a heartbeat; None if none is required."""

    sandbox_id: str
    session_id: str = field(repr=False)
    secret: bytes = field(repr=False)
    agent_epoch: str
    heartbeat_s: float | None = None

    def write(self) -> str:
        """As text."""
        import base64

        import msgpack

        packed: bytes = msgpack.packb([self.sandbox_id, self.session_id, self.secret, self.agent_epoch, self.heartbeat_s])
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def read(cls, text: object) -> SessionToken:
        """From text. Raises ``InvalidArgumentError``, whose message does not contain the token."""
        if not isinstance(text, str) or not text.startswith(_PREFIX) or not text.isascii() or len(text) > _MOST_CHARACTERS:
            raise _bad()
        import base64

        import msgpack

        body = text[len(_PREFIX) :]
        try:
            fields = msgpack.unpackb(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
        except Exception:  # noqa: BLE001  the decoder's message may quote the secret
            fields = None
        if not _plausible(fields):
            raise _bad()
        return cls(*fields)


def _plausible(fields: Any) -> bool:
    if not isinstance(fields, list) or len(fields) != 5:
        return False
    sandbox_id, session_id, secret, epoch, heartbeat_s = fields
    texts = all(isinstance(value, str) and value.isprintable() for value in (sandbox_id, session_id, epoch))
    return (
        texts
        and is_identifier(sandbox_id)
        and 16 <= len(session_id) <= 128
        and isinstance(secret, bytes)
        and 16 <= len(secret) <= 64
        and 1 <= len(epoch) <= ID_BYTES
        and (heartbeat_s is None or (type(heartbeat_s) is float and _LEAST_HEARTBEAT_S <= heartbeat_s <= _MOST_HEARTBEAT_S))
    )


def _bad() -> InvalidArgumentError:
    return InvalidArgumentError("invalid_argument", "this is not a session token", hint="pass all that sandbox.session_token() returned")
