"""The previews of ports: HTTP, WebSocket and server-sent events to programs in sandboxes, at a path and at a host of each port."""

from .rows import FACE, host_face

__all__ = ["FACE", "host_face"]
