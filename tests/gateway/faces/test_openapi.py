"""The OpenAPI document: it is valid and describes exactly the routes that exist."""

from __future__ import annotations

import re

from openapi_spec_validator import validate

from gateway.faces.orchard import FACE as ORCHARD
from gateway.faces.rest import FACE as REST
from gateway.faces.rest.service import document
from gateway.faces.table import WEBSOCKET
from tests.gateway.harness import Served


def test_the_document_is_valid() -> None:
    validate(document())


def test_the_documented_routes_are_exactly_the_served_ones() -> None:
    rows = [*REST.rows, *ORCHARD.rows]
    served = {("get" if row.method == WEBSOCKET else row.method.lower(), re.sub(r"{(\w+):\w+}", r"{\1}", row.path)) for row in rows}
    documented = {(method, path) for path, item in document()["paths"].items() for method in item if method != "parameters"}
    assert served == documented


def test_operation_names_are_unique() -> None:
    names = [operation["operationId"] for item in document()["paths"].values() for m, operation in item.items() if m != "parameters"]
    assert len(names) == len(set(names))


async def test_the_document_is_served(served: Served) -> None:
    async with served.client(None) as client:
        answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == document()


async def test_exactly_the_routes_documented_as_open_need_no_key(served: Served) -> None:
    open_paths = {path for path, item in document()["paths"].items() if item.get("get", {}).get("security") == []}
    async with served.client(None) as anonymous, served.client("hf_" + "0" * 32) as stranger:
        for path, item in document()["paths"].items():
            for method in item.keys() - {"parameters"}:
                if path.endswith(("/session", "/pty")):
                    continue
                where = re.sub(r"{\w+}", "x", path)
                for client, status in ((anonymous, 401), (stranger, 403)):
                    answer = await client.request(method, where)
                    assert answer.status_code == (200 if path in open_paths else status), (method, path)
