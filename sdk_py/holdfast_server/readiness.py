"""Whether the gateway of a stack is ready: one request to `/readyz`. Used by `supervisor` and `embed`."""

from __future__ import annotations

import http.client
import json

_TIMEOUT_S = 2.0


def missing_parts(url: str) -> list[str] | None:
    """None when everything is there; else what the gateway reports as unavailable, nothing where it does not answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status == 200:
            return None
        return [f"{part}: {why}" for part, why in json.loads(answer.read())["unavailable"].items()]
    except (OSError, http.client.HTTPException, ValueError, KeyError, AttributeError, TypeError):
        return []
    finally:
        connection.close()
