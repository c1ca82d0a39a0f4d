"""Errors as each dialect's clients expect them: status, body, and the event that ends a stream which had begun.

Owns the table of kinds. Clients decide by status and type whether they try again, so a kind that a repetition cannot mend never has a
status that asks for one.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from .branches import Dialect

Kind: TypeAlias = Literal["invalid", "too_long", "key", "over", "not_found", "method", "too_large", "encoding", "unavailable", "failed"]

_KINDS: dict[Kind, tuple[int, str, str | None, int, str]] = {
    # kind: status, type and code of OpenAI; status, type of Anthropic
    "invalid": (400, "invalid_request_error", None, 400, "invalid_request_error"),
    "too_long": (400, "invalid_request_error", "context_length_exceeded", 400, "invalid_request_error"),
    "key": (401, "invalid_request_error", "invalid_api_key", 401, "authentication_error"),
    "over": (403, "permission_error", "rollout_over", 403, "permission_error"),
    "not_found": (404, "invalid_request_error", "not_found", 404, "not_found_error"),
    "method": (405, "invalid_request_error", "method_not_allowed", 405, "invalid_request_error"),
    "too_large": (413, "invalid_request_error", "request_too_large", 413, "request_too_large"),
    "encoding": (415, "invalid_request_error", "unsupported_encoding", 415, "invalid_request_error"),
    "unavailable": (503, "server_error", "overloaded", 529, "overloaded_error"),
    "failed": (500, "server_error", "server_error", 500, "api_error"),
}


class RefusalError(Exception):
    """A request that gets an error as its answer. The message is for the client."""

    def __init__(self, kind: Kind, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.retry_after_s = kind, message, retry_after_s


def status_of(dialect: Dialect, refusal: RefusalError) -> int:
    row = _KINDS[refusal.kind]
    return row[3] if dialect == "messages" else row[0]


def body_of(dialect: Dialect, refusal: RefusalError) -> dict[str, Any]:
    """The JSON object of an error."""
    _, kind, code, _, anthropic = _KINDS[refusal.kind]
    if dialect == "messages":
        return {"type": "error", "error": {"type": anthropic, "message": refusal.message}, "request_id": None}
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": code}}


def event_of(dialect: Dialect, refusal: RefusalError, model: str, created_s: int) -> bytes:
    """The event of an error after a stream has begun with status 200."""
    if dialect == "messages":
        return _event("error", body_of(dialect, refusal))
    if dialect == "chat":
        return b"data: " + json.dumps(body_of(dialect, refusal), ensure_ascii=False).encode() + b"\n\n"
    error = {"code": _KINDS[refusal.kind][2] or "invalid_prompt", "message": refusal.message}
    response = {"id": "resp_failed", "object": "response", "created_at": created_s, "model": model, "status": "failed", "error": error}
    full = {**response, "incomplete_details": None, "output": [], "usage": None}
    return _event("response.failed", {"type": "response.failed", "sequence_number": 0, "response": full})


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
