"""Plays turns in one living shell, prints each as it happens, and keeps the times; for comparison, also one HTTP call each.

Owns the printing and the record of what was played. It knows neither where turns come from (`policy`, `live`) nor
what is made of the figures (`summary`).
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast import CommandResult, Sandbox, SandboxClient, Shell

from infra.demo.material import DemoError
from infra.demo.policy import Turn

_SHOWN_LINES = 8
_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Played:
    """One turn that was played. Times in seconds: `wall_s` as the caller waited, `inside_s` as the sandbox measured."""

    turn: Turn
    wall_s: float
    inside_s: float | None
    sent_bytes: int
    received_bytes: int

    @property
    def overhead_s(self) -> float | None:
        """What the way there and back cost."""
        return None if self.inside_s is None else max(self.wall_s - self.inside_s, 0.0)


@dataclass(slots=True)
class Episode:
    """Plays turns one after the other. Raises DemoError at the first whose outcome is not the expected one."""

    sandbox: Sandbox
    shell: Shell
    quiet: bool = False
    played: list[Played] = field(default_factory=list)

    def play(self, turns: Sequence[Turn]) -> None:
        for number, turn in enumerate(turns, 1):
            self._say(f"\n[{number}/{len(turns)}] {turn.thought}")
            self._act(turn) if turn.act is not None else self._run(turn)

    def _act(self, turn: Turn) -> None:
        assert turn.act is not None
        started = time.perf_counter()
        outcome = turn.act(self.sandbox)
        wall_s = time.perf_counter() - started
        self._say(f"    {outcome}  ({wall_s * 1e3:.1f} ms)")
        self.played.append(Played(turn, wall_s, None, 0, 0))

    def _run(self, turn: Turn) -> None:
        self._say(textwrap.indent(shortened(turn.command), "    $ ", lambda line: True))
        played, result = play(turn, self.shell.run, turn.command)
        output = result.stdout + result.stderr
        self._say(textwrap.indent(shortened(output), "    | ", lambda line: True), end="")
        self._say(f"\n    exit {result.exit_code}  ({played.wall_s * 1e3:.1f} ms)")
        self.played.append(played)
        check(turn, result.exit_code, f"{output}\n{result}")

    def _say(self, text: str, end: str = "\n") -> None:
        if not self.quiet and text:
            print(text, end=end, flush=True)


@dataclass(frozen=True, slots=True)
class RestRun:
    """`played` are the commands that could be run; `left_out` how many need the living shell; `repeated_bytes` what
    had to be repeated."""

    played: list[Played]
    left_out: int
    repeated_bytes: int


def play_over_rest(sandbox: Sandbox, caller: SandboxClient, turns: Sequence[Turn]) -> RestRun:
    """Play *turns* by *caller*, a client without sessions. Raises DemoError when an outcome differs from that in the shell.

    Each call starts a new shell without state, so the state of earlier turns (`Turn.state`) is repeated in front of the
    command; turns that talk to something an earlier turn left running have no counterpart and are left out.
    """
    played: list[Played] = []
    prelude: list[str] = []
    left_out = repeated = 0
    over_rest = caller.get_sandbox(sandbox.id)
    for turn in turns:
        if turn.lives:
            left_out += 1
        elif turn.act is not None:
            turn.act(sandbox)
        else:
            before = "\n".join(prelude)
            repeated += len(before.encode())
            call, result = play(turn, over_rest.exec, f"{before}\n{turn.command}")
            check(turn, result.exit_code, result.stdout + result.stderr)
            played.append(call)
        if turn.state:
            prelude.append(turn.state)
    return RestRun(played, left_out, repeated)


def play(turn: Turn, run: Callable[..., CommandResult], command: str, timeout_s: float = 60.0) -> tuple[Played, CommandResult]:
    """Run a turn's command by ``run``, a method of a shell or a sandbox."""
    started = time.perf_counter()
    result = run(command, timeout=timeout_s)
    wall_s = time.perf_counter() - started
    received = len(result.stdout_bytes) + len(result.stderr_bytes)
    return Played(turn, wall_s, result.duration_s, len(command.encode()), received), result


def check(turn: Turn, exit_code: int | None, output: str) -> None:
    """Raises DemoError when a turn's outcome is not the expected one."""
    if exit_code != turn.exit_code or turn.expect not in output:
        raise DemoError(
            f"“{turn.thought}” ended with {exit_code}, expected {turn.exit_code} and {turn.expect!r} in:\n{output}",
            hint="the recorded commands do not fit this output: this is a bug of the demo or of the service",
        )


def shortened(text: str) -> str:
    """The first lines of a text, each cut to a screen's width, with a count of what was left out."""
    lines = text.rstrip("\n").splitlines()
    kept = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…" for line in lines[:_SHOWN_LINES]]
    if len(lines) > _SHOWN_LINES:
        kept.append(f"… {len(lines) - _SHOWN_LINES} more lines")
    return "\n".join(kept)
