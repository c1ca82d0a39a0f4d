"""The gateway without ``gateway/faces/e2b`` and its use in ``gateway.__main__`` still serves REST."""

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

from tests.gateway.harness import serve


async def main() -> None:
    async with serve(sys.argv[1], Path(sys.argv[2])) as served, served.client() as client:
        created = await client.post("/sandboxes", json={"image": "host", "wait": True})
        gone = await client.get("/e2b/v2/sandboxes")
        loaded = [name for name in sys.modules if "e2b" in name]
        print(json.dumps({"create": created.json()["status"], "e2b": gone.json()["code"], "loaded": loaded}))


asyncio.run(main())
"""


def test_the_gateway_serves_everything_else(redis_url: str, tmp_path: Path) -> None:
    original, copy = Path(gateway.__file__).parent, tmp_path / "code" / "gateway"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("e2b", "__pycache__"))
    (copy.parent / "schemas").symlink_to(original.parent / "schemas")
    main = copy / "__main__.py"
    main.write_text("\n".join(line for line in main.read_text().splitlines() if "e2b" not in line.lower()) + "\n")
    assert [path for path in copy.rglob("*.py") if "faces.e2b" in path.read_text()] == []
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, redis_url, str(tmp_path / "data")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(copy.parent), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"create": "ready", "e2b": "not_found", "loaded": []}
