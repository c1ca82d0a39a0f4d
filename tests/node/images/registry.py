"""A registry of images on this machine, with HTTPS and a certificate of its own, for tests of pulls.

Owns the part of the distribution API that a pull uses. It can redirect the layers elsewhere, and holds back an answer until it is told to.
Not a stub of the client: the real skopeo pulls from it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Registry:
    """Serves the OCI layout in ``layout`` as every image."""

    layout: Path
    port: int = 0
    redirect: str = ""
    """Where the layers are, if not here."""
    paths: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    """While it is not set, layers are not sent."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set when a layer was requested."""

    @property
    def host(self) -> str:
        return f"registry.test:{self.port}"


@contextlib.contextmanager
def registry(layout: Path, certificates: Path) -> Iterator[Registry]:
    """``certificates`` is a folder in which a certificate for ``localhost`` is made, as ``ca.crt``."""
    certificates.mkdir(parents=True)
    certificate, key = certificates / "ca.crt", certificates / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,DNS:registry.test", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    served = Registry(layout)
    served.held.set()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: _Handler(served, *given))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="registry", daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.held.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, served: Registry, *given: object) -> None:
        self._served = served
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        served = self._served
        served.paths.append(self.path)
        (entry,) = json.loads((served.layout / "index.json").read_text())["manifests"]
        kind, body = "application/json", b"{}"
        if "/manifests/" in self.path:
            kind, body = MANIFEST, self._blob(entry["digest"])
        elif "/blobs/" in self.path:
            digest = self.path.rpartition("/")[2]
            manifest = json.loads(self._blob(entry["digest"]))
            if any(layer["digest"] == digest for layer in manifest["layers"]):
                served.asked.set()
                served.held.wait(60)
                if served.redirect:
                    self.send_response(307)
                    self.send_header("Location", served.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            body = self._blob(digest)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        pass

    def _blob(self, digest: str) -> bytes:
        return (self._served.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
