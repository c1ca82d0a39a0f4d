"""The gateway's connection to the node: the first request is answered, also on a new connection after the old one broke."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gateway.runtimes.local import NodeClient


async def test_the_first_request_on_every_connection_is_answered(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while line := await reader.readline():
            writer.write(json.dumps({"id": json.loads(line)["id"], "ok": True, "connection": len(connections)}).encode() + b"\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "node.sock")
    client = NodeClient(tmp_path / "node.sock")
    try:
        assert (await client.call("stats", timeout_s=60))["connection"] == 1
        assert (await client.call("stats", timeout_s=60))["connection"] == 1
        connections[0].close()
        assert client._connection is not None
        await client._connection.ended
        assert (await client.call("stats", timeout_s=60))["connection"] == 2
    finally:
        await client.aclose()
        server.close()
        for writer in connections:
            writer.close()
