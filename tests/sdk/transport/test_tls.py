"""Sessions and REST over TLS: certificates are checked, large data passes through the encrypted socket, on both APIs."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from holdfast import ServiceUnavailableError
from holdfast._async.http import AsyncHttp
from holdfast._options import Options
from holdfast._sync.http import Http
from holdfast._transport.rest.answer import UnreachableError

from tests.sdk.support.fake_agent import FakeAgent

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program for a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def agent(certificate: tuple[Path, Path]) -> Iterator[FakeAgent]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with FakeAgent(tls=context) as running:
        yield running


async def test_sessions_run_over_tls(
    sandbox: Any, agent: FakeAgent, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    shell = await sandbox.shell()
    assert (await shell.run("echo secret")).stdout == "secret\n"
    assert len((await sandbox.exec("flood 20000000")).stdout_bytes) == 20_000_000
    data = b"y" * 5_000_000
    assert (await sandbox.exec("cat", input=data)).stdout_bytes == data
    agent.cut()
    assert (await shell.run("echo again")).stdout == "again\n"


async def test_an_untrusted_certificate_is_refused(sandbox: Any) -> None:
    with pytest.raises(ServiceUnavailableError, match="certificate") as refused:
        await sandbox.exec("true")
    assert (refused.value.retryable, refused.value.fault) == (False, "caller")
    assert "HOLDFAST_URL" in refused.value.hint


class Echo(BaseHTTPRequestHandler):
    """Answers each request with its body and keeps the connection open."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[tuple[str, int]]] = set()

    def do_POST(self) -> None:
        self.connections.add(self.client_address)
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def echo(certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        Echo.connections.clear()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(60)


def _bodies(url: str, face: str, bodies: list[bytes]) -> list[bytes]:
    options = Options(url, "key")
    if face == "blocking":
        http = Http(options)
        try:
            return [http.send("POST", "/", timeout_s=60, content=body).body for body in bodies]
        finally:
            http.close()

    async def asynchronous() -> list[bytes]:
        http = AsyncHttp(options)
        try:
            return [(await http.send("POST", "/", timeout_s=60, content=body)).body for body in bodies]
        finally:
            await http.close()

    return asyncio.run(asynchronous())


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_rest_runs_over_tls(echo: str, face: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    bodies = [b"small", b"z" * 5_000_000, b"again"]
    assert _bodies(echo, face, bodies) == bodies
    assert len(Echo.connections) == 1, "the connection is reused"


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_rest_refuses_an_untrusted_certificate(echo: str, face: str) -> None:
    with pytest.raises(UnreachableError, match="certificate") as refused:
        _bodies(echo, face, [b"x"])
    assert not refused.value.reached
