"""``doctor``: checks Python and the service, or this machine's node if no service answers, and prints what to do about each failure.

Exit status 0 if all required checks pass, 125 otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from holdfast import HoldfastError, SandboxClient
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json, print_line

NODE = "session_agent.node"
NODE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``fix``: what to do if it fails; without ``required``, a failure only disables a feature."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""
    required: bool = True


def doctor(arguments: Arguments) -> int:
    service = _service()
    checks = [_python(), *service]
    if not service[0].ok:
        checks += _node()
    ok = all(check.ok for check in checks if check.required)
    if arguments.json:
        print_json({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            mark = "ok  " if check.ok else "FAIL" if check.required else "no  "
            print_line(f"{mark}  {check.name}{': ' + check.detail if check.detail else ''}")
            if not check.ok and check.fix:
                print_line(f"      {check.fix}")
    return 0 if ok else 125


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    fast = find_spec("websockets.speedups") is not None
    detail = version if fast else f"{version}, without the C part of websockets: large transfers will be slow"
    return Check("python", sys.version_info >= (3, 11), detail, "use Python 3.11 or newer")


def _service() -> list[Check]:
    try:
        with SandboxClient(connect_timeout_s=3.0, request_timeout_s=20.0) as client:
            url = client.url
            rows = client.doctor()
    except HoldfastError as why:
        return [Check("service", False, why.message, why.hint)]
    return [Check("service", True, url), *[read(row) for row in rows]]


def _node() -> list[Check]:
    """The checks of a node on this machine, if the node's code is installed."""
    if find_spec("session_agent") is None or find_spec(NODE) is None:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-m", NODE, "doctor", "--json"], capture_output=True, text=True, timeout=NODE_TIMEOUT_S, check=False
        )
        body = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as why:
        what = f"the checks of the node could not be run: {type(why).__name__}"
        return [Check("node", False, what, "run `python -m session_agent.node doctor` to see the whole error")]
    rows = body.get("checks", []) if isinstance(body, dict) else body
    return [read(row) for row in rows if isinstance(row, dict)]


def read(row: dict[str, Any]) -> Check:
    """Read a check that the service or a node reports."""
    detail, fix = str(row.get("detail") or ""), str(row.get("fix") or "")
    return Check(str(row.get("name", "?")), row.get("ok") is True, detail, fix, row.get("required") is not False)
