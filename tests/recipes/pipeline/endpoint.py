"""An OpenAI-compatible endpoint on loopback that answers from a function, after it has refused once with each given status."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any] | str]


@dataclass(slots=True)
class Endpoint:
    """``requests`` are the bodies it got; ``statuses`` are used up one by one before it answers; status 0 drops the connection."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    refusal: str = "refused"


@contextlib.contextmanager
def endpoint(answer: Answer, *statuses: int, refusal: str = "refused") -> Iterator[Endpoint]:
    """``answer`` gives an assistant message, or the text of one."""
    served = Endpoint(statuses=list(statuses), refusal=refusal)
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                served.requests.append(body)
                status = served.statuses.pop(0) if served.statuses else 200
            if status == 0:
                self.close_connection = True
                return
            if status != 200:
                self._send(status, {"error": {"message": served.refusal}})
                return
            reply = answer(body)
            message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            about = {"id": f"chat-{len(served.requests)}", "object": "chat.completion", "created": 0, "model": body["model"]}
            self._send(200, about | {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that closes its connection is not a test failure."""

    with Server(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="endpoint")
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
