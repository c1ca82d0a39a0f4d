"""The pages that a person sees in place of a preview: nothing listens yet, the sandbox is not ready or has ended, the link is not valid.

Owns their words and form. They run no script; two of them load themselves again. Programs get the problem document instead. Called by
``gateway.app`` for refused requests.
"""

from __future__ import annotations

from html import escape
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.http.responses import problem_headers

from .targets import target_of

_RETRY_S: Final = 2
_RETRIED: Final = ("port_unreachable", "sandbox_not_ready", "agent_unreachable", "placement_unavailable")
_TITLES: Final = {
    "port_unreachable": "Nothing answers on port {port} yet",
    "sandbox_not_ready": "The sandbox is being created",
    "sandbox_gone": "The sandbox has ended",
    "sandbox_failed": "The sandbox has failed",
    "sandbox_not_found": "There is no such sandbox",
    "sandbox_paused": "The sandbox is paused",
    "key_missing": "This preview needs its link",
    "key_invalid": "This link is not valid any more",
    "origin_refused": "This page may not use the preview",
}
_FORM: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{refresh}<title>{title}</title><style>
:root {{ color-scheme: light dark }}
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto 0; padding: 0 16px }}
h1 {{ font-size: 17px }} p {{ margin: 8px 0; overflow-wrap: anywhere }} small {{ opacity: 0.7 }}
</style></head><body><h1>{title}</h1><p>{detail}</p><p>{hint}</p><p><small>{again}{facts}</small></p></body></html>
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'"


def page(connection: HTTPConnection, error: HoldfastError) -> Response | None:
    """The page of a refusal for a browser's navigation; None for other requests."""
    if connection.scope.get("method") not in ("GET", "HEAD") or "text/html" not in connection.headers.get("accept", ""):
        return None
    retried = error.code in _RETRIED
    facts = [error.code, f"fault: {error.fault}"] + ([f"cause: {error.reason}"] if error.reason else [])
    body = _FORM.format(
        refresh=f'<meta http-equiv="refresh" content="{_RETRY_S}">' if retried else "",
        title=escape(_title(connection, error)),
        detail=_shown(error.message),
        hint=_shown(error.hint),
        again=f"This page tries again every {_RETRY_S} s. " if retried else "",
        facts=" · ".join(_shown(fact) for fact in facts),
    )
    headers = problem_headers(error) | {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    headers |= {"Retry-After": str(_RETRY_S)} if retried else {}
    return Response(body, error.kind.status, headers, "text/html")


def _title(connection: HTTPConnection, error: HoldfastError) -> str:
    title = _TITLES.get(error.code, "The preview cannot be shown")
    try:
        return title.format(port=target_of(connection).port)
    except HoldfastError:
        return "There is no such preview"


def _shown(text: str) -> str:
    """Text that a sandbox may have written, with its control characters spelled out."""
    return escape("".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text[:1000]))
