"""``GET /docs``: the two documents of the API as one page, without scripts and without anything from another host.

Owns its HTML. What it shows is the documents and the error table, nothing else; every text is escaped.
"""

from __future__ import annotations

import functools
import json
from html import escape
from typing import Any, Final

from holdfast_wire.errors import TABLE
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from . import asyncapi, service

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem 2rem}
code,pre{font:13px/1.4 ui-monospace,monospace}pre{overflow:auto;padding:.6rem;border:1px solid #8884;border-radius:6px}
details{border:1px solid #8884;border-radius:6px;margin:.35rem 0;padding:.35rem .7rem}summary{cursor:pointer}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;padding:.25rem .5rem;text-align:left;vertical-align:top}
.m{display:inline-block;min-width:4.2rem;font-weight:600}nav a{margin-right:1rem}
"""


async def page(request: Request) -> Response:
    """``GET /docs``."""
    return HTMLResponse(_page(), headers=_HEADERS)


async def asyncapi_json(request: Request) -> Response:
    """``GET /asyncapi.json``."""
    return Response(_asyncapi(), media_type="application/json")


@functools.cache
def _asyncapi() -> bytes:
    return json.dumps(asyncapi.document()).encode()


@functools.cache
def _page() -> str:
    api, streams = service.document(), asyncapi.document()
    links = "".join(f'<a href="#{name}">{name}</a>' for name in ("requests", "schemas", "session", "events", "errors"))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(api['info']['title'])}: API</title><style>{_STYLE}</style>"
        f"<h1>{escape(api['info']['title'])}: API</h1><p>{escape(api['info']['description'])}</p>"
        f'<nav>{links}<a href="openapi.json">openapi.json</a><a href="asyncapi.json">asyncapi.json</a></nav>'
        f'<h2 id="requests">Requests</h2>{_operations(api)}'
        f'<h2 id="schemas">Schemas</h2>{_schemas(api)}'
        f'<h2 id="session">Frames of a session</h2>{_messages(streams, "session")}'
        f'<h2 id="events">Events</h2>{_messages(streams, "events")}'
        f'<h2 id="errors">Errors</h2>{_errors()}</html>'
    )


def _operations(api: dict[str, Any]) -> str:
    found = []
    for path, item in api["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            parameters = [_resolved(api, one) for one in (*item.get("parameters", ()), *operation.get("parameters", ()))]
            body = operation.get("requestBody", {}).get("content", {})
            found.append(
                f'<details id="{escape(operation["operationId"])}"><summary><span class="m">{method.upper()}</span> '
                f"<code>{escape(path)}</code> {escape(operation.get('summary', ''))}</summary>"
                f"<p>{escape(operation.get('description', ''))}</p>"
                + _table(("parameter", "in", "", ""), [_parameter(one) for one in parameters])
                + "".join(f"<p>Body, {escape(media)}:</p>{_shown(value.get('schema', {}))}" for media, value in body.items())
                + _table(("answer", "", "content"), [_answer(api, status, one) for status, one in operation["responses"].items()])
                + ("" if operation.get("security") == [] else "<p>Needs a key.</p>")
                + "</details>"
            )
    return "".join(found)


def _parameter(one: dict[str, Any]) -> tuple[str, ...]:
    name = f"<code>{escape(one['name'])}</code>" + (" (required)" if one.get("required") else "")
    return name, escape(one["in"]), escape(one.get("description", "")), _shown(one.get("schema", {}))


def _answer(api: dict[str, Any], status: str, one: dict[str, Any]) -> tuple[str, ...]:
    one = _resolved(api, one)
    content = "".join(f"{escape(media)} {_shown(value.get('schema', {}))}" for media, value in one.get("content", {}).items())
    return escape(status), escape(one.get("description", "")), content


def _schemas(api: dict[str, Any]) -> str:
    schemas = api["components"]["schemas"].items()
    return "".join(
        f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>{_shown(schema)}</details>'
        for name, schema in schemas
    )


def _messages(streams: dict[str, Any], channel: str) -> str:
    about = streams["channels"][channel]
    found = []
    for reference in about["messages"].values():
        message = streams["components"]["messages"][reference["$ref"].rpartition("/")[2]]
        sender = f" (from {message['x-sender']})" if "x-sender" in message else ""
        head = f"<code>{escape(message['title'])}</code>{escape(sender)} {escape(message.get('summary', ''))}"
        found.append(f"<details><summary>{head}</summary>{_shown(message['payload'])}</details>")
    return f"<p><code>{escape(about['address'])}</code> {escape(about['description'])}</p>{''.join(found)}"


def _errors() -> str:
    rows: list[tuple[str, ...]] = [
        (f"<code>{escape(kind.code)}</code>", str(kind.status), str(kind.close_code or ""), escape(kind.sdk_class), escape(kind.hint))
        for kind in TABLE.values()
    ]
    return _table(("code", "status", "close code", "class of the SDK", "what to do"), rows)


def _shown(schema: Any) -> str:
    """A schema; a reference is a link to it."""
    if isinstance(schema, dict) and set(schema) == {"$ref"}:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    return f"<pre>{escape(json.dumps(schema, indent=1, ensure_ascii=False))}</pre>"


def _resolved(api: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in one:
        return one
    found: Any = api
    for part in one["$ref"].split("/")[1:]:
        found = found[part]
    resolved: dict[str, Any] = found
    return resolved


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + f"</tr>{lines}</table>"
