"""The same commands, one HTTP call each: what the episode would be without a living shell.

Owns the comparison run in a second sandbox. Each call starts a new shell without state, so the state of earlier
turns (`Turn.state`) is repeated in front of the command; turns that talk to something an earlier turn left
running have no counterpart and are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from holdfast import Sandbox

from infra.demo.episode import Played, check
from infra.demo.policy import Turn

_TURN_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class RestRun:
    """`played` are the commands that could be run; `left_out` how many need the living shell; `repeated_bytes` what
    had to be repeated."""

    played: list[Played]
    left_out: int
    repeated_bytes: int


def play_over_rest(sandbox: Sandbox, url: str, key: str, turns: Sequence[Turn]) -> RestRun:
    """Raises DemoError when a command's outcome differs from that in the shell."""
    played: list[Played] = []
    prelude: list[str] = []
    left_out = repeated = 0
    with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=_TURN_TIMEOUT_S + 10) as client:
        for turn in turns:
            if turn.act is not None and not turn.lives:
                turn.act(sandbox)
            elif turn.lives:
                left_out += 1
            else:
                before = "\n".join(prelude)
                repeated += len(before.encode())
                played.append(_call(client, sandbox.id, turn, f"{before}\n{turn.command}"))
            if turn.state:
                prelude.append(turn.state)
    return RestRun(played, left_out, repeated)


def _call(client: httpx.Client, sandbox_id: str, turn: Turn, command: str) -> Played:
    body = {"command": command, "timeout_seconds": _TURN_TIMEOUT_S, "wait": True}
    started = time.perf_counter()
    answer = client.post(f"/sandboxes/{sandbox_id}/exec", json=body)
    wall_s = time.perf_counter() - started
    job = answer.raise_for_status().json()
    output = (job["stdout"] or "") + (job["stderr"] or "")
    check(turn, job["exit_code"], output)
    inside_s = max(job["completed_at"] - job["started_at"], 0.0) if job["completed_at"] and job["started_at"] else None
    return Played(turn, wall_s, inside_s, len(command.encode()), len(output.encode()))
