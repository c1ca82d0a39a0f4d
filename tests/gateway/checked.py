"""An HTTP client that validates every response against the OpenAPI document, a create through it, and the code of a refusal."""

from __future__ import annotations

import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from gateway.faces.rest.service import document

_REGISTRY: Registry[Any] = Registry().with_resource("api", DRAFT202012.create_resource(document()))


def check(answer: httpx.Response) -> httpx.Response:
    """Raise when the document does not describe this response."""
    path = answer.request.url.path
    item = next(item for pattern, item in _paths() if pattern.fullmatch(path))
    responses = item[answer.request.method.lower()]["responses"]
    described = responses.get(str(answer.status_code)) or responses["default"]
    if "$ref" in described:
        described = document()["components"]["responses"][described["$ref"].rpartition("/")[2]]
    media = answer.headers["content-type"].partition(";")[0]
    schema = described["content"][media]["schema"]
    Draft202012Validator(_absolute(schema), registry=_REGISTRY).validate(answer.json())
    if answer.status_code in (429, 503):
        assert "retry-after" in answer.headers
    assert answer.headers["x-request-id"]
    return answer


def _paths() -> list[tuple[re.Pattern[str], Any]]:
    items = sorted(document()["paths"].items(), key=lambda pair: pair[0].count("{"))
    return [(re.compile(re.sub(r"{name}", ".+", re.sub(r"{(?!name)\w+}", "[^/]+", path))), item) for path, item in items]


def _absolute(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: "api" + value if name == "$ref" else _absolute(value) for name, value in schema.items()}
    return [_absolute(value) for value in schema] if isinstance(schema, list) else schema


class Checked:
    """``await client("GET", "/sandboxes")`` returns the response and fails if the document does not describe it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        return check(await self.client.request(method, path, **more))


async def made(call: Checked, **body: Any) -> dict[str, Any]:
    answer = await call("POST", "/sandboxes", json={"image": "host", "wait": True, **body})
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def problem(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    return answer.status_code, body["code"]
