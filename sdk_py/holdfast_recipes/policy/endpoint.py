"""The HTTP client that policies behind an endpoint share: one connection pool, one way to report failures.

Owns the request, the sampling fields and the conversion of failures into ``PolicyError``s. Does not own a body's other fields or the
reading of an answer (``openai_chat``, ``sglang``, ``engines.vllm``), nor retries and time limits, which are the loop's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from .base import ContextLengthError, PolicyError, PolicyRefusedError, PolicyUnavailableError

_LATER = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_TOO_LONG = ("context length", "context_length", "maximum context", "too many tokens", "longer than the model", "prompt is too long")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling fields of each request. ``extra`` is added to the body unchanged, for fields beyond the standard."""

    temperature: float | None = 1.0
    top_p: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, float]:
        given = {"temperature": self.temperature, "top_p": self.top_p}
        return {name: value for name, value in given.items() if value is not None}


class Endpoint:
    """An HTTP client for the base address ``url``. Use it in an ``async with``.

    ``timeout_s`` bounds one request if the loop has no limit of its own; ``connect_timeout_s`` bounds the connecting.
    """

    def __init__(
        self, url: str, sampling: Sampling | None, timeout_s: float, *, connect_timeout_s: float = 10.0, api_key: str = ""
    ) -> None:
        self._sampling = sampling or Sampling()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s), limits=limits
        )

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that the endpoint answers. Raises a PolicyError for every other outcome."""
        try:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            response = await self._http.post(path, content=content, headers={"Content-Type": "application/json"})
        except httpx.TransportError as error:
            raise PolicyUnavailableError(f"{type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise _refusal(response)
        try:
            answer = response.json()
        except ValueError as error:
            raise PolicyUnavailableError("the endpoint answered with a body that is not JSON") from error
        if not isinstance(answer, Mapping):
            raise PolicyUnavailableError("the endpoint answered with JSON that is not an object")
        return answer

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _refusal(response: httpx.Response) -> PolicyError:
    text = response.text[:_SHOWN]
    message = f"the endpoint answered {response.status_code}: {text}"
    if response.status_code in (400, 413, 422) and any(words in response.text.lower() for words in _TOO_LONG):
        return ContextLengthError(message)
    if response.status_code in _LATER:
        return PolicyUnavailableError(message, _seconds(response.headers.get("Retry-After")))
    return PolicyRefusedError(message)


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` in seconds; its form as a date is not read."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 3600 else None
