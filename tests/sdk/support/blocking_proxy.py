"""An HTTP proxy that breaks WebSockets: it forwards requests and answers upgrades with its own page."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request
from typing import Any, Self


class BlockingProxy:
    """In front of ``target``; counts the upgrades it refused."""

    def __init__(self, target: str) -> None:
        outer = self
        self.upgrades = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                if self.headers.get("Upgrade"):
                    outer.upgrades += 1
                    self._answer(403, "text/html", b"<h1>not here</h1>")
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
                request = urllib.request.Request(target + self.path, body, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=20) as answer:
                        self._answer(answer.status, answer.headers["Content-Type"], answer.read())
                except urllib.error.HTTPError as refused:
                    with refused:
                        self._answer(refused.code, refused.headers["Content-Type"], refused.read())

            do_GET = do_POST = do_DELETE = _forward  # noqa: N815

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
