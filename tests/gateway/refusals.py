"""Reads the refusal of an attach: an HTTP response with a problem document, before any upgrade."""

from __future__ import annotations

import orjson
import pytest
from websockets.exceptions import InvalidStatus

from gateway.model.records import Cause
from tests.gateway.harness import Served

OOM = Cause("oom", "workload", "killed for memory")


async def refusal(
    served: Served, sandbox_id: str = "sb-1", key: str | None = "default", **headers: str
) -> tuple[int, str, dict[str, object]]:
    keyed = {} if key == "default" else {"key": key}
    with pytest.raises(InvalidStatus) as caught:
        await served.attach(sandbox_id, **keyed, **headers)  # type: ignore[arg-type]
    response = caught.value.response
    assert response.headers["content-type"] == "application/problem+json"
    body = orjson.loads(response.body or b"")
    return response.status_code, body["code"], body
