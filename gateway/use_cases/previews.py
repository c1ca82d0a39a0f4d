"""Previews: the links to ports of sandboxes, and connections to them.

Owns what a link looks like in both of its forms and how long it is valid, and at which address of the sandbox a port is tried. Called by
faces.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Failed

from gateway.agents.agent_socket import ReportedEndError
from gateway.agents.port_connections import PortConnection
from gateway.identity import preview_tokens
from gateway.identity.preview_tokens import PreviewToken
from gateway.identity.principal import Principal, Scope
from gateway.model.records import Record

from . import ports
from .agent_channel import confirmed, limit
from .agent_reports import fact_error
from .service import Gateway

LINK_S: Final = 3600.0
"""How long a link is valid unless its request says otherwise."""
MOST_LINK_S: Final = 7 * 86400.0
PARAMETER: Final = "holdfast_preview"
"""The query parameter with a link's token."""
HEADER: Final = "X-Holdfast-Preview"
"""The header with it, for programs."""
_OPEN_S: Final = 15.0
"""How long an agent may take to report whether the program accepted the connection."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LABEL_CHARACTERS: Final = 63


@dataclass(frozen=True, slots=True)
class Link:
    """``host`` is the name below the preview domain, which has the sandbox's id; "" if the port has only the form with a path."""

    token: str
    expires_at: int
    host: str
    path: str


async def link(gateway: Gateway, principal: Principal, name: str, port: int, expires_s: float) -> Link:
    """A new link to a port of the owner's sandbox. Raises what ``Gateway.ready`` raises."""
    record = await gateway.ready(principal.owner, name)
    token = PreviewToken(name, record.owner, record.incarnation, port, int(time.time() + expires_s), principal.credential)
    text = preview_tokens.sign(gateway.secrets[0], token)
    label, domain = f"{port}-{record.sandbox_id}", gateway.settings.preview_domain
    has_host = bool(domain) and len(label) <= _LABEL_CHARACTERS and _LABEL.fullmatch(label) is not None
    return Link(text, token.expires_at, f"{label}.{domain}" if has_host else "", f"/sandboxes/{name}/ports/{port}/")


async def record_of(gateway: Gateway, principal: Principal, name: str) -> Record:
    """The owner's sandbox, as it was a moment ago at most. Raises what ``Gateway.ready`` raises."""
    return await gateway.recent_records.get(principal.owner, name, gateway.ready)


async def granted(gateway: Gateway, text: str) -> tuple[PreviewToken, Principal] | None:
    """The valid token of a link whose key still permits it, and its principal; else None.

    The caller checks that it is of the requested sandbox and port.
    """
    token = preview_tokens.read(gateway.secrets, text, time.time())
    if token is None:
        return None
    try:
        principal = await gateway.tenants.granted(token.key_digest, token.owner, frozenset({Scope.EXEC}))
    except HoldfastError as error:
        if error.code != "key_invalid":
            raise
        return None
    return (token, principal) if principal.scopes else None


async def connect(gateway: Gateway, record: Record, port: int, *, fresh: bool = False) -> PortConnection:
    """A connection to a port at whatever address of the sandbox a program listens: a kept one, unless it has to be ``fresh``.

    Raises ``port_unreachable`` if no program listens.
    """
    if not fresh and (kept := gateway.ports.kept(record, port)) is not None:
        return kept
    try:
        return await _connected(gateway, record, port, fresh)
    except ReportedEndError as error:
        raise await confirmed(gateway, record, error) from None


async def explained(gateway: Gateway, record: Record, error: HoldfastError) -> HoldfastError:
    """``error`` of a request that a connection carried, or the end of the sandbox, if placement has it or its agent reports it."""
    if isinstance(error, ReportedEndError):
        return await confirmed(gateway, record, error)
    if error.code == "port_unreachable":
        gateway.recent_records.forget(record.owner, record.name)
        try:
            await gateway.ready(record.owner, record.name)
        except HoldfastError as ended:
            return ended
    return error


async def _connected(gateway: Gateway, record: Record, port: int, fresh: bool) -> PortConnection:
    direct = await gateway.ports.open_socket(record, port)
    if direct is not None:
        return direct
    connection, failure = await _tunnel(gateway, record, port, "", fresh)
    if connection is None:
        host = await ports.address_of(gateway, record, port)
        if host:
            connection, failure = await _tunnel(gateway, record, port, host, fresh)
    if connection is not None:
        return connection
    assert failure is not None
    error = fact_error(failure)
    if error.code != "port_unreachable":
        raise error
    hint = f"start a program that listens on port {port} of the sandbox, then try again"
    raise HoldfastError("port_unreachable", f"nothing listens on port {port} of sandbox {record.name!r}", hint=hint)


async def _tunnel(gateway: Gateway, record: Record, port: int, host: str, fresh: bool) -> tuple[PortConnection | None, Failed | None]:
    if host and not fresh and (kept := gateway.ports.kept(record, port, host)) is not None:
        return kept, None
    connection = await gateway.ports.open_tunnel(record, port, host)
    try:
        async with limit(_OPEN_S):
            failure = await connection.opened()
    except BaseException:
        connection.close()
        raise
    if failure is None:
        return connection, None
    connection.close()
    return None, failure
