"""Errors as each dialect's clients expect them: status, body, and the event that ends a stream which had begun.

Owns the table of kinds. Clients decide by status and type whether they retry, so an error that a retry cannot resolve never has a
status that causes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from .branches import Dialect

Kind: TypeAlias = Literal["invalid", "too_long", "key", "over", "not_found", "method", "too_large", "encoding", "unavailable", "failed"]


def _all(status: int) -> dict[Dialect, int]:
    return {"chat": status, "responses": status, "messages": status}


_KINDS: dict[Kind, tuple[Mapping[Dialect, int], str, str | None, str]] = {
    # kind: statuses; type and code of OpenAI; type of Anthropic
    "invalid": (_all(400), "invalid_request_error", None, "invalid_request_error"),
    "too_long": (_all(400), "invalid_request_error", "context_length_exceeded", "invalid_request_error"),
    "key": (_all(401), "invalid_request_error", "invalid_api_key", "authentication_error"),
    # codex retries after a 403, litellm after a 400
    "over": (_all(403) | {"responses": 400}, "permission_error", "rollout_over", "permission_error"),
    "not_found": (_all(404), "invalid_request_error", "not_found", "not_found_error"),
    "method": (_all(405), "invalid_request_error", "method_not_allowed", "invalid_request_error"),
    "too_large": (_all(413), "invalid_request_error", "request_too_large", "request_too_large"),
    "encoding": (_all(415), "invalid_request_error", "unsupported_encoding", "invalid_request_error"),
    "unavailable": (_all(503) | {"messages": 529}, "server_error", "overloaded", "overloaded_error"),
    "failed": (_all(500), "server_error", "server_error", "api_error"),
}


class RefusalError(Exception):
    """A request that gets an error as its answer. The message is for the client."""

    def __init__(self, kind: Kind, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.retry_after_s = kind, message, retry_after_s


def status_of(dialect: Dialect, refusal: RefusalError) -> int:
    return _KINDS[refusal.kind][0][dialect]


def body_of(dialect: Dialect, refusal: RefusalError) -> dict[str, Any]:
    """The JSON object of an error."""
    _, kind, code, anthropic = _KINDS[refusal.kind]
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
