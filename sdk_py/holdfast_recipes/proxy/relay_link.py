"""The outer end of the relay: brings connections that programs make inside a sandbox to one server outside (C4.2).

Owns the relay's process in the sandbox and one local connection for each stream. The process is a command of the public SDK: its pipes
survive the loss of a gateway or of the network, and hold back on their own. Needs a Python of 3.6 or later in the image. What comes out
of a sandbox is checked: it is the workload's to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from importlib.resources import files
from types import TracebackType
from typing import Self

from holdfast import AsyncProcess, AsyncSandbox, HoldfastError, SpawnError

from .relay import CREDIT, DATA, EOF, HEAD, MOST_STREAMS, NUMBER, OPEN, PIECE, READY, RESET, WINDOW

PYTHONS = ("python3", "python", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3", "/opt/miniconda3/bin/python3")
"""Possible paths of a Python. Images with their own environment often have it first on the path."""
_READY_WITHIN_S = 30.0
_SETTLE_S = 0.5
_NOT_FOUND = (126, 127)
_MOST_FRAMES = 64


class RelayError(Exception):
    """No relay runs in the sandbox: none could be started (``missing``: there is no Python), or it ended."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class RelayLink:
    """``async with RelayLink(sandbox, proxy.address) as relay``: programs in the sandbox reach the server at ``relay.url``.

    ``inner_port`` is where it listens inside (0: any free one), ``user`` whom it runs as. ``ended`` is set when it is of no use any more,
    with the reason in ``failure``.
    """

    def __init__(
        self,
        sandbox: AsyncSandbox,
        server: tuple[str, int],
        *,
        inner_port: int = 0,
        user: str | int | None = None,
        pythons: Sequence[str] = PYTHONS,
    ) -> None:
        self.port = 0
        """Its port in the sandbox, on 127.0.0.1."""
        self.ended = asyncio.Event()
        self.failure: Exception | None = None
        self._sandbox, self._server = sandbox, server
        self._options = inner_port, user, tuple(pythons)
        self._process: AsyncProcess | None = None
        self._received = bytearray()
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(_MOST_FRAMES)
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self._start()
        self._task(self._read(), "read")
        self._task(self._write(), "write")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """End the relay and every connection through it.

        What programs that ended have not read is on its way then, and gets a moment: whether an answer was read is seen from it.
        """
        while self._streams and not self.ended.is_set():
            self._settled.clear()
            try:
                async with asyncio.timeout(_SETTLE_S):
                    await self._settled.wait()
            except TimeoutError:
                break
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._process is not None:
            with contextlib.suppress(HoldfastError):
                await self._process.close()

    async def _start(self) -> None:
        """Run the script with the first Python that takes it. Raises RelayError, or the HoldfastError of a sandbox that is lost."""
        port, user, pythons = self._options
        script = files(__package__).joinpath("relay.py").read_text()
        tried: list[RelayError] = []
        for python in pythons:
            try:
                process = await self._sandbox.start([python, "-I", "-u", "-c", script, str(port)], user=user, timeout=float("inf"))
            except SpawnError:
                continue
            try:
                async with asyncio.timeout(_READY_WITHIN_S):
                    self.port = await self._ready(process)
                self._process = process
                return
            except TimeoutError:
                tried.append(RelayError(f"{python} did not start within {_READY_WITHIN_S:g} s"))
            except RelayError as error:
                tried.append(error)
            finally:
                if self._process is None:
                    await process.close()
        if all(error.missing for error in tried):
            raise RelayError(f"the image has no Python: tried {', '.join(pythons)}", missing=True)
        raise RelayError("; ".join(str(error) for error in tried if not error.missing))

    async def _ready(self, process: AsyncProcess) -> int:
        output = b""
        while chunk := await process.read():
            if chunk.stream == 2:
                output = (output + chunk.data)[-300:]
                continue
            self._received += chunk.data
            if (frame := self._frame()) is not None:
                if frame[1] != READY or len(frame[2]) != NUMBER.size:
                    raise RelayError("the script in the sandbox is not the relay")
                return int(NUMBER.unpack(frame[2])[0])
        code = (await process.wait()).exit_code
        raise RelayError(f"the relay ended with exit code {code}: {output.decode('utf-8', 'replace').strip()}", missing=code in _NOT_FOUND)

    def _frame(self) -> tuple[int, int, bytes] | None:
        """The next frame, if all of it is there."""
        if len(self._received) < HEAD.size:
            return None
        number, kind, size = HEAD.unpack_from(self._received)
        if size > WINDOW:
            raise RelayError(f"the relay sent a frame of {size} bytes")
        if len(self._received) < HEAD.size + size:
            return None
        payload = bytes(self._received[HEAD.size : HEAD.size + size])
        del self._received[: HEAD.size + size]
        return number, kind, payload

    # Frames -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        assert self._process is not None
        output = b""
        try:
            while True:
                while (frame := self._frame()) is not None:
                    await self._take(*frame)
                if (chunk := await self._process.read()) is None:
                    break
                if chunk.stream == 2:
                    output = (output + chunk.data)[-300:]
                else:
                    self._received += chunk.data
            self.failure = RelayError(f"the relay ended: {output.decode('utf-8', 'replace').strip()}")
        except (HoldfastError, RelayError, struct.error) as error:
            self.failure = error
        finally:
            self.ended.set()
            for stream in list(self._streams.values()):
                stream.leave()

    async def _write(self) -> None:
        assert self._process is not None
        try:
            while True:
                frames = [await self._frames.get()]
                while not self._frames.empty():
                    frames.append(self._frames.get_nowait())
                await self._process.write(b"".join(frames))
        except HoldfastError as error:
            self.failure = self.failure or error
            self.ended.set()

    async def _take(self, number: int, kind: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if kind == OPEN:
            if number in self._streams or len(self._streams) >= 2 * MOST_STREAMS:
                raise RelayError(f"the relay opened stream {number} beside {len(self._streams)} others")
            self._streams[number] = stream = _Stream()
            self._task(self._serve(number, stream), f"stream-{number}")
        elif stream is None:
            return  # it ended here; the other end has not been notified yet
        elif kind == CREDIT:
            stream.grant(NUMBER.unpack(payload)[0])
        elif kind == RESET:
            stream.abort()
        else:
            stream.held += len(payload)
            if stream.held > WINDOW:
                raise RelayError(f"the relay sent more than {WINDOW} unread bytes on stream {number}")
            stream.incoming.put_nowait(payload if kind == DATA else b"")

    async def _say(self, number: int, kind: int, payload: bytes = b"") -> None:
        await self._frames.put(HEAD.pack(number, kind, len(payload)) + payload)

    # Streams ----------------------------------------------------------------------------------------------------

    async def _serve(self, number: int, stream: _Stream) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._server)
        except OSError:
            self._streams.pop(number, None)
            await self._say(number, RESET)
            return
        stream.writer = writer
        if stream.aborted:
            stream.abort()
        try:
            outward = asyncio.ensure_future(self._outward(number, stream, writer))
            try:
                await self._inward(number, stream, reader)
                await outward
            finally:
                outward.cancel()
                await asyncio.wait({outward})
        except OSError:
            if not stream.aborted:
                await self._say(number, RESET)
        except asyncio.CancelledError:
            stream.leave()
            raise
        finally:
            self._streams.pop(number, None)
            self._settled.set()
            writer.close()

    async def _outward(self, number: int, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        """From the program to the server."""
        while data := await stream.incoming.get():
            writer.write(data)
            await writer.drain()
            stream.held -= len(data)
            await self._say(number, CREDIT, NUMBER.pack(len(data)))
        if not stream.aborted:
            writer.write_eof()

    async def _inward(self, number: int, stream: _Stream, reader: asyncio.StreamReader) -> None:
        """From the server to the program."""
        while True:
            data = await reader.read(min(PIECE, await stream.room()))
            stream.credit -= len(data)
            await self._say(number, DATA if data else EOF, data)
            if not data:
                return

    def _task(self, work: object, name: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=f"holdfast-relay-{name}")  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Stream:
    """One connection. ``incoming`` holds what the program sent, at most WINDOW bytes, which the other end keeps to."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.held = 0
        self.credit = WINDOW
        self.aborted = False
        self.writer: asyncio.StreamWriter | None = None
        self._granted = asyncio.Event()

    def grant(self, size: int) -> None:
        self.credit += size
        self._granted.set()

    async def room(self) -> int:
        while self.credit <= 0:
            self._granted.clear()
            await self._granted.wait()
        return self.credit

    def leave(self) -> None:
        """End the connection from here: by a reset where the program had not taken all that it was sent."""
        if self.credit < WINDOW or self.writer is None:
            self.abort()
        else:
            self.incoming.put_nowait(b"")
            self.writer.close()

    def abort(self) -> None:
        """Reset the connection, which shows the server that its answer was not read."""
        self.aborted = True
        self.incoming.put_nowait(b"")
        if self.writer is not None:
            sock: socket.socket = self.writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
