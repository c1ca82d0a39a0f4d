"""The rows that only clients of Orchard Env use, and what they change in a gateway.

Owns this table. Without it the gateway serves everything else.
"""

from __future__ import annotations

from gateway.faces.table import WEBSOCKET, Face, Row
from gateway.identity.principal import Scope
from gateway.use_cases.service import Gateway

from . import terminal
from .retry_detection import RetryDetection


def _recognise_retries(gateway: Gateway) -> None:
    gateway.command_ids = RetryDetection().exec_id


FACE = Face(
    "orchard",
    (Row(WEBSOCKET, "/sandboxes/{sandbox_id}/exec/pty", Scope.EXEC, terminal.pty, key=terminal.terminal_key),),
    refuse_websocket=terminal.refuse,
    prepare=_recognise_retries,
)
