"""The blocking API's idle connections are closed without a warning when a client is dropped without being closed."""

from __future__ import annotations

import gc
import http.server
import threading
import warnings
from collections.abc import Iterator

import pytest
from holdfast._options import Options
from holdfast._sync.http import Http


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_dropped_client_leaves_no_open_socket_behind(url: str) -> None:
    made = Http(Options(url, "hf_key"))
    assert made.send("GET", "/", timeout_s=60).status == 200
    assert made.connected
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del made
        gc.collect()
    assert not [str(one.message) for one in seen if "unclosed <socket" in str(one.message)]
