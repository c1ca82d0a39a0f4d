"""The same commands, one HTTP call each: what the episode would be without a living shell.

Owns the comparison run in a second sandbox. Each call starts a new shell without state, so the state of earlier
turns (`Turn.state`) is repeated in front of the command; turns that talk to something an earlier turn left
running have no counterpart and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast import Sandbox, SandboxClient

from infra.demo.episode import Played, check, play
from infra.demo.policy import Turn


@dataclass(frozen=True, slots=True)
class RestRun:
    """`played` are the commands that could be run; `left_out` how many need the living shell; `repeated_bytes` what
    had to be repeated."""

    played: list[Played]
    left_out: int
    repeated_bytes: int


def play_over_rest(sandbox: Sandbox, caller: SandboxClient, turns: Sequence[Turn]) -> RestRun:
    """`caller` is a client without sessions. Raises DemoError when a command's outcome differs from that in the shell."""
    played: list[Played] = []
    prelude: list[str] = []
    left_out = repeated = 0
    over_rest = caller.get_sandbox(sandbox.id)
    for turn in turns:
        if turn.act is not None and not turn.lives:
            turn.act(sandbox)
        elif turn.lives:
            left_out += 1
        else:
            before = "\n".join(prelude)
            repeated += len(before.encode())
            call, result = play(turn, over_rest.exec, f"{before}\n{turn.command}")
            check(turn, result.exit_code, result.stdout + result.stderr)
            played.append(call)
        if turn.state:
            prelude.append(turn.state)
    return RestRun(played, left_out, repeated)
