"""The gateway without ``gateway/faces/orchard`` and its use in ``gateway.__main__`` still serves every other route."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gateway
from tests.support.requires import requires

pytestmark = requires("redis")

_PROGRAM = """
import asyncio, json, sys
from pathlib import Path

import httpx
from holdfast_wire.frames import Exited, Started
from tests.gateway.agent_peer import RESULT, AgentPeer, execute
from tests.gateway.harness import ScriptedAgent, echo, serve


async def script(peer: AgentPeer) -> None:
    await peer.send(Started(1, "x", {}), Exited(1, "x", RESULT))


async def main() -> None:
    async with serve(sys.argv[1], Path(sys.argv[2])) as served, served.client() as client:
        created = await client.post("/sandboxes", json={"image": "host", "wait": True})
        listed = await client.get("/sandboxes")
        executed = await execute(served, script)
        async with ScriptedAgent(echo, sandbox_id="sb-2") as agent:
            await served.place("sb-2", agent.endpoint)
            async with served.attach("sb-2") as session:
                await session.send(b"one message")
                echoed = await session.recv()
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "A" * 22 + "=="}
        terminal = await client.get("/sandboxes/sb-2/exec/pty", headers=upgrade)
        print(json.dumps({
            "create": [created.status_code, created.json()["status"]],
            "list": [listed.status_code, len(listed.json()["sandboxes"])],
            "exec": [executed.status_code, executed.json()["exit_code"]],
            "session": echoed.decode(),
            "terminal": [terminal.status_code, terminal.json()["code"]],
            "loaded": [name for name in sys.modules if "orchard" in name],
        }))


asyncio.run(main())
"""


def test_the_gateway_serves_everything_else(redis_url: str, tmp_path: Path) -> None:
    original, copy = Path(gateway.__file__).parent, tmp_path / "code" / "gateway"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("orchard", "__pycache__"))
    (copy.parent / "schemas").symlink_to(original.parent / "schemas")
    main = copy / "__main__.py"
    kept = [line for line in main.read_text().splitlines() if "orchard" not in line.lower()]
    main.write_text("\n".join(kept) + "\n")
    assert [path for path in copy.rglob("*.py") if "gateway.faces.orchard" in path.read_text()] == []

    (tmp_path / "data").mkdir()
    paths = [str(copy.parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, redis_url, str(tmp_path / "data")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "create": [200, "ready"],
        "list": [200, 1],
        "exec": [200, 0],
        "session": "one message",
        "terminal": [404, "not_found"],
        "loaded": [],
    }
