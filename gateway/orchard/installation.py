"""The entry point of this package: adds the features that only clients of Orchard Env use to a gateway.

Called by ``gateway.__main__``; without this call the gateway serves everything else.
"""

from __future__ import annotations

import uvicorn
from holdfast_wire.limits import MESSAGE_BYTES

from gateway.app import Application

from .protocols import BoundedWebSocketProtocol, TerminalHttpProtocol
from .retry_detection import RetryDetection
from .terminal import pty


def install(application: Application, config: uvicorn.Config) -> None:
    """Recognise repeated execs and serve the terminal. ``config`` has not been loaded yet."""
    application.exec_id = RetryDetection().exec_id
    application.websocket = pty
    config.http = TerminalHttpProtocol
    config.ws = BoundedWebSocketProtocol
    config.ws_max_size = MESSAGE_BYTES + 1024
    config.ws_per_message_deflate = False
    config.ws_ping_interval = None
