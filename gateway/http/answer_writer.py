"""The head of a response and the beginning of its body are sent in one write.

uvicorn writes them one after the other, and each write is a packet: a system call here, a wake-up and a forwarded packet at every proxy in
between, and two wake-ups of the client. ``AnswerWriter`` stands before the transport for one answer. Used by ``bounded_protocol``.
"""

from __future__ import annotations

import asyncio
from typing import Final

_INTERIM: Final = b"HTTP/1.1 1"
"""The beginning of an interim response, which another one follows: 100 Continue."""


class AnswerWriter:
    """What a response needs of its transport. A head without a body that follows at once is sent in the loop's next iteration."""

    __slots__ = ("_begun", "_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._begun = False

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self._begun or data.startswith(_INTERIM):
            self._transport.write(data)
        else:
            self._begun = True
            self._head = data
            self._loop.call_soon(self._release)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._release()
        self._transport.close()

    def _release(self) -> None:
        if self._head and not self._transport.is_closing():
            head, self._head = self._head, b""
            self._transport.write(head)
