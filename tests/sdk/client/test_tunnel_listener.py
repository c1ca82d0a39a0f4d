"""A tunnel's local port: it survives a short lack of descriptors or threads, and closing it closes the connections it accepted."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest
from holdfast._sync.tunnel import Tunnel
from holdfast._transport.threads.net import Stream

from tests.support.until import until


class Failing:
    """A listening socket whose first accept fails for lack of descriptors."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._failed = False

    def accept(self) -> Any:
        if not self._failed:
            self._failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def tunnel_of(serve: Any) -> Tunnel:
    """A tunnel without a sandbox: ``serve`` is called with each connection."""
    tunnel = Tunnel(None, 1, None, set())  # type: ignore[arg-type]
    tunnel._serve = serve  # type: ignore[method-assign]
    return tunnel


def greet(stream: Stream) -> None:
    stream.write(b"hello")
    stream.close()


@pytest.mark.parametrize("lack", ["descriptors", "threads"])
def test_a_port_survives_a_short_lack(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lack == "descriptors":
        create = socket.create_server
        monkeypatch.setattr(socket, "create_server", lambda *args, **more: Failing(create(*args, **more)))
    tunnel = tunnel_of(greet)
    tunnel._listen("127.0.0.1", 0)
    monkeypatch.undo()
    if lack == "threads":
        refused = threading.Event()
        start = threading.Thread.start

        def once(thread: threading.Thread) -> None:
            if not refused.is_set():
                refused.set()
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", once)
        with socket.create_connection((tunnel.address.host, tunnel.address.port), timeout=60) as refused_connection:
            assert refused_connection.recv(5) == b""
    with socket.create_connection((tunnel.address.host, tunnel.address.port), timeout=60) as one:
        assert one.recv(5) == b"hello"
    tunnel.close()


def test_a_connection_accepted_while_the_port_closes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted, served = threading.Event(), threading.Event()
    tunnel = tunnel_of(lambda stream: served.set())
    start = tunnel._background.start

    def late(step: Any, *args: Any, name: str) -> None:
        if name == "holdfast-tunnel":
            accepted.set()
            until(lambda: tunnel._closed, deadline_s=60, what="the tunnel to be closed")
        start(step, *args, name=name)

    monkeypatch.setattr(tunnel._background, "start", late)
    tunnel._listen("127.0.0.1", 0)
    with socket.create_connection((tunnel.address.host, tunnel.address.port), timeout=60) as one:
        assert accepted.wait(60)
        tunnel.close()
        assert one.recv(1) == b""
    assert not served.is_set()


def test_accepted_connections_have_tcp_nodelay() -> None:
    options = []

    def look(stream: Stream) -> None:
        options.append(stream._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        greet(stream)

    tunnel = tunnel_of(look)
    tunnel._listen("127.0.0.1", 0)
    with socket.create_connection((tunnel.address.host, tunnel.address.port), timeout=60) as one:
        assert one.recv(5) == b"hello"
    tunnel.close()
    assert options == [1]
