"""The inner end of the relay: a script that runs inside a sandbox, so that programs without a network reach one server outside.

Listens on 127.0.0.1 and carries each connection as a stream of frames over its standard input and output, which the session of the sandbox
brings out, resumes and holds back. Imports the standard library alone and runs on Python 3.6 and later; the outer end is ``relay_link``.
A frame is ``>IBI`` (stream, kind, size) and a payload; each stream may be WINDOW bytes ahead of its reader.
"""

import os
import selectors
import socket
import struct
import sys

HEAD = struct.Struct(">IBI")
NUMBER = struct.Struct(">I")
READY, OPEN, DATA, EOF, RESET, CREDIT = range(6)
WINDOW = 256 * 1024
PIECE = 32 * 1024
MOST_STREAMS = 256


class Stream:
    """One connection of a program in the sandbox. ``read_ended``: the program's side is over; ``write_ended``: the server's is."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.out = bytearray()
        self.credit = WINDOW
        self.read_ended = False
        self.write_ended = False

    def events(self, held_back: bool) -> int:
        """The events to wait for. Bytes that cannot be sent are not read, so that the program is slowed down."""
        reads = not self.read_ended and self.credit > 0 and not held_back
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self.out else 0)


class Relay:
    """The listener, its streams, and the two pipes. One thread; nothing waits but ``select``."""

    def __init__(self, port: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.streams: dict[int, Stream] = {}
        self.received = bytearray()
        self.to_send = bytearray()
        self.made = 0
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(128)
        self.listener.setblocking(False)
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.queue_frame(0, READY, NUMBER.pack(self.listener.getsockname()[1]))

    def run(self) -> None:
        """Serve until the outer end closes its side."""
        self.selector.register(0, selectors.EVENT_READ)
        while True:
            self.watch(self.listener, selectors.EVENT_READ if len(self.streams) < MOST_STREAMS else 0)
            self.watch(1, selectors.EVENT_WRITE if self.to_send else 0)
            for stream in self.streams.values():
                self.watch(stream.sock, stream.events(len(self.to_send) >= WINDOW), stream)
            for key, events in self.selector.select():
                if key.fileobj == 0:
                    if not self.take_frames():
                        return
                elif key.fileobj == 1:
                    self.send_frames()
                elif key.fileobj is self.listener:
                    self.accept()
                else:
                    self.serve(key.data, events)

    def watch(self, what: "socket.socket | int", events: int, data: object = None) -> None:
        known = self.selector.get_map().get(what)
        if known is None and events:
            self.selector.register(what, events, data)
        elif known is not None and not events:
            self.selector.unregister(what)
        elif known is not None and known.events != events:
            self.selector.modify(what, events, data)

    def queue_frame(self, number: int, kind: int, payload: bytes = b"") -> None:
        self.to_send += HEAD.pack(number, kind, len(payload)) + payload

    # The programs' side -----------------------------------------------------------------------------------------

    def accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return  # it went away while it waited
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.made += 1
        self.streams[self.made] = Stream(self.made, sock)
        self.queue_frame(self.made, OPEN)

    def serve(self, stream: Stream, events: int) -> None:
        if self.streams.get(stream.number) is not stream:
            return  # it ended in this round
        try:
            if events & selectors.EVENT_WRITE and stream.out:
                sent = stream.sock.send(stream.out)
                del stream.out[:sent]
                self.queue_frame(stream.number, CREDIT, NUMBER.pack(sent))
            if events & selectors.EVENT_READ and not stream.read_ended:
                data = stream.sock.recv(min(PIECE, stream.credit))
                stream.credit -= len(data)
                stream.read_ended = not data
                self.queue_frame(stream.number, DATA if data else EOF, data)
            self.finish(stream)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.queue_frame(stream.number, RESET)
            self.drop(stream)

    def finish(self, stream: Stream) -> None:
        """Pass the server's end on once everything before it is out, and forget a stream of which both sides are over."""
        if stream.write_ended and not stream.out:
            stream.sock.shutdown(socket.SHUT_WR)
            if stream.read_ended:
                self.drop(stream)

    def drop(self, stream: Stream) -> None:
        self.watch(stream.sock, 0)
        stream.sock.close()
        del self.streams[stream.number]

    # The pipes --------------------------------------------------------------------------------------------------

    def take_frames(self) -> bool:
        """Act on what the outer end sent; False when it has closed."""
        try:
            data = os.read(0, 4 * PIECE)
        except BlockingIOError:
            return True
        self.received += data
        while len(self.received) >= HEAD.size:
            number, kind, size = HEAD.unpack_from(self.received)
            if len(self.received) < HEAD.size + size:
                break
            payload = bytes(self.received[HEAD.size : HEAD.size + size])
            del self.received[: HEAD.size + size]
            if number in self.streams:
                self.take(self.streams[number], kind, payload)
        return bool(data)

    def take(self, stream: Stream, kind: int, payload: bytes) -> None:
        if kind == DATA:
            stream.out += payload
        elif kind == CREDIT:
            stream.credit += NUMBER.unpack(payload)[0]
        elif kind == EOF:
            stream.write_ended = True
            self.serve(stream, 0)
        elif kind == RESET:
            # closing with this option resets the connection, so that the program does not take it for an end
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.drop(stream)

    def send_frames(self) -> None:
        try:
            sent = os.write(1, self.to_send[: 4 * PIECE])
        except BlockingIOError:
            return
        del self.to_send[:sent]


if __name__ == "__main__":
    try:
        Relay(int(sys.argv[1]) if len(sys.argv) > 1 else 0).run()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
