"""``mcp``: serve one sandbox to clients of the Model Context Protocol; needs the extra ``mcp``, which is imported only for this command."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from holdfast import UnsupportedError
from holdfast.cli.command_line import Arguments, UsageError

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def mcp(arguments: Arguments) -> None:
    if find_spec("mcp") is None:
        raise UnsupportedError("unsupported", "the package mcp is not installed here", hint="pip install 'holdfast[mcp]'")
    address = None if arguments.http is None else _address(arguments.http)
    token = os.environ.get("HOLDFAST_MCP_TOKEN", "")
    if address is not None and address[0] not in _LOOPBACK and not token:
        raise UsageError(
            f"without a token everyone who reaches {address[0]} could use the sandbox",
            hint="set HOLDFAST_MCP_TOKEN, which clients send as Authorization: Bearer TOKEN; or listen on 127.0.0.1",
        )
    import asyncio

    from holdfast.integrations.mcp import Workbench, serve_http, serve_stdio

    options: dict[str, Any] = {"cpu": arguments.cpu, "memory": arguments.memory, "block_network": arguments.network in (None, "none")}
    workbench = Workbench(arguments.image or "host", arguments.sandbox, options)
    asyncio.run(serve_stdio(workbench) if address is None else serve_http(workbench, *address, token))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http must be HOST:PORT, not {text!r:.100}", hint="as in --http 127.0.0.1:8000")
    return host.strip("[]") or "127.0.0.1", int(port)
