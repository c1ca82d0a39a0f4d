"""The simplest service: `subprocess.run` behind one HTTP route, on the same server and framework as the gateway.

It has no isolation, output limits or authentication, so it shows the cost of HTTP and of a process alone. Started as
`python -m tests.bench.plain_http PORT`.
"""

from __future__ import annotations

import subprocess
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def _run(command: list[str]) -> dict[str, object]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return {"exit_code": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}


async def _exec(request: Request) -> JSONResponse:
    return JSONResponse(_run((await request.json())["command"]))


if __name__ == "__main__":
    uvicorn.run(Starlette(routes=[Route("/exec", _exec, methods=["POST"])]), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
