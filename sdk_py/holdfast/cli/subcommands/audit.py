"""``audit``: who did what to which sandbox, one line for each entry of the service's audit log."""

from __future__ import annotations

import json
import time
from typing import Any

from holdfast import SandboxClient
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import escape, print_line

_FIRST = ("time", "event", "action", "owner", "project", "key_id", "for_owner", "for_project", "sandbox", "code", "status", "command")
_LEFT_OUT = frozenset({"replica", "request_id", "took_s", "command_sha256"})


def audit(arguments: Arguments) -> None:
    with SandboxClient() as client:
        entries = client.audit(
            sandbox=arguments.sandbox, owner=arguments.owner, since_s=arguments.since or None, limit=int(arguments.limit or 1000)
        )
    for entry in entries:
        print_line(json.dumps(entry) if arguments.json else _line(entry))


def _line(entry: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(entry.get("time") or 0)))
    who = str(entry.get("owner") or "-") + (f"/{entry['project']}" if entry.get("project") else "")
    who += f" ({entry['key_id']})" if entry.get("key_id") else ""
    whom = f" for {entry['for_owner']}" if entry.get("for_owner") else ""
    whom += f"/{entry['for_project']}" if entry.get("for_project") else ""
    what = str(entry.get("action") or entry.get("event"))
    result = str(entry.get("code") or entry.get("status") or "")
    words = [at, who + whom, what, *([f"sandbox={entry['sandbox']}"] if entry.get("sandbox") else []), result]
    words += [f"command={entry['command']}"] if entry.get("command") else []
    words += [
        f"{name}={value}" for name, value in entry.items() if name not in _FIRST and name not in _LEFT_OUT and value not in ("", None)
    ]
    return escape("  ".join(word for word in words if word)).replace("\n", "\\n")
