"""``history``: the last commands of a sandbox."""

from __future__ import annotations

import dataclasses
import time

from holdfast import PastCommand, SandboxClient
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import age, print_json, table
from holdfast.cli.sandbox_names import opened


def history(arguments: Arguments) -> None:
    with SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        found = sandbox.history()
    if arguments.json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    now = time.time()
    head = ("ID", "STARTED", "TOOK", "CPU", "EXIT", "OUTPUT", "COMMAND")
    table(head, (_row(one, now) for one in found))


def _row(one: PastCommand, now: float) -> tuple[str, ...]:
    started = "" if one.started_at is None else f"{age(one.started_at, now)} ago"
    took, cpu = ("" if seconds is None else f"{seconds:.2f}s" for seconds in (one.duration_s, one.cpu_s))
    end = "runs" if one.running else "" if one.exit_code is None else str(one.exit_code)
    why = f" ({one.reason or one.signal})" if one.reason or one.signal else ""
    where = f"[{one.shell}] " if one.kind == "run" else f"[{one.kind}] " if one.kind == "terminal" else ""
    line = " ".join(f"{where}{one.line}".split())
    return one.command_id, started, took, cpu, end + why, str(one.stdout_bytes + one.stderr_bytes), line
