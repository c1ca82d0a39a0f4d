"""REST with a slow service: long waits are not given up early and do not delay heartbeats."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from holdfast_wire.rest import SandboxRecord

from tests.support.until import until

RECORD = SandboxRecord("sb", "", "host", True, "1", "1Gi", 60.0, "ready", True).to_map()


class Slow:
    """Counts requests; ``answer`` gets the path and its count, and returns JSON, or None to close the connection."""

    def __init__(self) -> None:
        outer = self
        self.seen: dict[str, int] = {}
        self.answer: Callable[[str, int], Any] = lambda path, count: RECORD
        self.test_over = threading.Event()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    count = outer.seen[self.path] = outer.seen.get(self.path, 0) + 1
                answer = outer.answer(self.path, count)
                self.close_connection = answer is None
                if answer is not None:
                    body = json.dumps(answer).encode()
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 500
            block_on_close = False

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def hold(self) -> Any:
        """Delay the answer until the test is over."""
        self.test_over.wait(60)
        return RECORD


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    threading.Thread(target=slow.server.serve_forever, args=(0.01,), daemon=True).start()
    yield slow
    slow.test_over.set()
    slow.server.shutdown()
    slow.server.server_close()


@pytest.fixture
def constant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Sets a constant of the retry policy."""
    return lambda name, value: monkeypatch.setattr(f"holdfast._transport.rest.retry.{name}", value)


async def test_waiting_creates_do_not_delay_heartbeats(slow: Slow, face: Any) -> None:
    slow.answer = lambda path, count: slow.hold() if path == "/sandboxes" else {}
    client = face.client(slow.url, "key", request_timeout_s=20.0)
    with ThreadPoolExecutor(101) as threads:
        if face.name == "sync":
            waiting = [asyncio.wrap_future(threads.submit(client.inner.create_sandbox, "host")) for _ in range(101)]
        else:
            waiting = [asyncio.ensure_future(client.create_sandbox("host")) for _ in range(101)]
        await asyncio.sleep(0)
        try:
            await asyncio.to_thread(until, lambda: slow.seen.get("/sandboxes", 0) >= 100, deadline_s=60, what="the creates to wait")
            await client.get_sandbox("other").keep_alive()
            assert slow.seen["/sandboxes/other/heartbeat"] == 1
        finally:
            slow.test_over.set()
            await asyncio.gather(*waiting, return_exceptions=True)
    await client.close()


async def test_the_first_heartbeat_is_sent_at_once(slow: Slow, face: Any) -> None:
    """The service expects heartbeats only after the first: the sandbox of a client killed before that lives to the end of its lifetime."""
    slow.answer = lambda path, count: RECORD
    client = face.client(slow.url, "key")
    sandbox = await client.create_sandbox("host", sandbox_id="sb", heartbeat_timeout_s=3600)
    await asyncio.to_thread(until, lambda: slow.seen.get("/sandboxes/sb/heartbeat"), deadline_s=60, what="the first heartbeat")
    await sandbox.close()
    await client.close()


async def test_an_unanswered_heartbeat_does_not_delay_the_next(slow: Slow, face: Any) -> None:
    slow.answer = lambda path, count: slow.hold() if path.endswith("heartbeat") and count == 1 else RECORD
    client = face.client(slow.url, "key")
    sandbox = await client.create_sandbox("host", sandbox_id="sb", heartbeat_timeout_s=0.3)
    await asyncio.to_thread(until, lambda: slow.seen.get("/sandboxes/sb/heartbeat", 0) > 1, deadline_s=60, what="the second heartbeat")
    await sandbox.close()
    await client.close()


async def test_a_create_survives_load_balancers_that_cut_waiting_requests(slow: Slow, face: Any, constant: Any) -> None:
    constant("ARRIVED_S", 0.05)
    constant("BASE_S", 0.001)

    def cut(path: str, count: int) -> Any:
        if count > 6:
            return RECORD
        slow.test_over.wait(0.1)
        return None

    slow.answer = cut
    client = face.client(slow.url, "key")
    assert (await client.create_sandbox("host")).id == "sb"
    assert slow.seen["/sandboxes"] == 7
    await client.close()


async def test_a_create_is_sent_again_when_the_service_hangs(slow: Slow, face: Any, constant: Any) -> None:
    constant("HOLD_S", 3.0)
    slow.answer = lambda path, count: slow.hold() if count == 1 else RECORD
    client = face.client(slow.url, "key")
    assert (await client.create_sandbox("host")).id == "sb"
    assert slow.seen["/sandboxes"] == 2
    assert not slow.test_over.is_set(), "the first request is still held"
    await client.close()
