"""P15: a small request through a preview, compared with nginx in front of the same program.

Owns the program, nginx and the client, all with connections that are kept: what is compared is the path of a request alone. The program
runs once in the sandbox and once on this machine, since nginx cannot enter the sandbox.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from holdfast import AsyncSandbox
from holdfast_server.embed import free_port

from tests.bench.figures import Figure, at_most
from tests.bench.latency import in_turn
from tests.support.preview_app import SOURCE
from tests.support.until import until, until_async

_PORT = 8080
_BUDGET = 3
_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 64; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream program {{ server 127.0.0.1:{program}; keepalive 8; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://program; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def is_installed() -> bool:
    """Whether nginx is: the package nginx-light of Debian."""
    return shutil.which("nginx") is not None


async def p15(sandbox: AsyncSandbox, url: str, key: str, count: int = 2000) -> Figure:
    process = await sandbox.start(["python3", "-c", SOURCE, str(_PORT)], stdin=False)

    async def listens() -> bool:
        return _PORT in [one.port for one in await sandbox.ports()]

    await until_async(listens, deadline_s=60, what="the program to listen")
    place = urlsplit(url)
    path = f"/sandboxes/{sandbox.id}/ports/{_PORT}/x"
    with _nginx() as port, _client(place.port or 80, path, f"X-API-Key: {key}\r\n") as preview, _client(port, "/x") as proxied:

        async def floor() -> float:
            started = time.perf_counter()
            proxied.get()
            return time.perf_counter() - started

        async def figure() -> None:
            preview.get()

        samples = await in_turn(count, floor, figure)
    await process.kill()
    how = f"p50 of {count} GETs of some hundred bytes over one connection, in turn with nginx in front of the same program on this machine"
    name = "a request through a preview, p50"
    return at_most("P15", name, samples.p50 * 1e6, "µs", samples.floor_p50 * 1e6, _BUDGET, 2, how, samples.spread(1e6))


class _Client:
    """One kept connection, with as little of HTTP as the answers need."""

    def __init__(self, connection: socket.socket, request: bytes) -> None:
        self._connection = connection
        self._request = request

    def get(self) -> None:
        self._connection.sendall(self._request)
        answer = self._more(b"")
        while b"\r\n\r\n" not in answer:
            answer = self._more(answer)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), answer
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < length:
            body = self._more(body)

    def _more(self, before: bytes) -> bytes:
        data = self._connection.recv(65536)
        assert data, f"the connection was closed after {before!r}"
        return before + data


@contextmanager
def _client(port: int, path: str, fields: str = "") -> Iterator[_Client]:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield _Client(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())


@contextmanager
def _nginx() -> Iterator[int]:
    """nginx in front of the program, both on this machine; the port of nginx."""
    program, port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="hf-nginx-") as folder:
        configuration = Path(folder, "nginx.conf")
        configuration.write_text(_CONFIGURATION.format(folder=folder, program=program, port=port))
        commands = (["/usr/bin/python3", "-c", SOURCE, str(program)], ["nginx", "-p", folder, "-c", str(configuration)])
        started = [subprocess.Popen(command, stderr=sys.stderr) for command in commands]
        try:
            for each in (program, port):
                until(lambda each=each: _listens(each), deadline_s=60, what=f"port {each} to be listened on")  # type: ignore[misc]
            yield port
        finally:
            for one in started:
                one.terminate()
                one.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
