"""A chat completions service that answers with the turns of a list, in order.

Owns a tiny HTTP server on loopback, in a thread. Keeps every request, so that a test can check what a model
receives. `status` makes it refuse.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FakeModel:
    """`replies` are assistant messages; `requests` are the received requests, oldest first."""

    url: str
    replies: list[dict[str, Any]]
    status: int = 200
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


def call(command: str, number: int = 1) -> dict[str, Any]:
    """An assistant message that runs a command."""
    return raw_call(json.dumps({"command": command}), number)


def raw_call(arguments: str, number: int = 1) -> dict[str, Any]:
    """An assistant message that calls the tool with the given arguments, which may be invalid."""
    function = {"name": "shell", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@contextlib.contextmanager
def fake_model(replies: Sequence[dict[str, Any]], status: int = 200) -> Iterator[FakeModel]:
    model = FakeModel("", list(replies), status)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"object": "list", "data": [{"id": "scripted-1", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model.requests.append(body)
            if not model.replies:
                self._answer({"error": {"message": "the script is over"}}, 500)
                return
            message = model.replies.pop(0)
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            self._answer({"model": body["model"], "choices": [{"index": 0, "message": message, "finish_reason": reason}]})

        def _answer(self, body: dict[str, Any], status: int | None = None) -> None:
            model.keys.add(self.headers.get("Authorization", ""))
            data = json.dumps(body if model.status == 200 else {"error": {"message": "refused"}}).encode()
            self.send_response(model.status if model.status != 200 else status or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, name="fake-openai")
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
