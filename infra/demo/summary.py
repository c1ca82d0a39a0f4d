"""What an episode cost: turns, commands, round trips, bytes. Owns the arithmetic and the words of the last page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from infra.demo.episode import Played, RestRun


def _percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: a value that was seen. `share` from 0 to 1."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(played: Sequence[Played], created_s: float, total_s: float, rest: RestRun | None) -> str:
    """The closing page."""
    commands = [turn for turn in played if turn.inside_s is not None]
    lines = [
        f"{len(played)} turns, {len(commands)} commands in one living shell, {total_s:.1f} s in all",
        f"sandbox ready after {created_s * 1e3:.0f} ms",
        f"sent {_bytes(commands, 'sent_bytes')}, received {_bytes(commands, 'received_bytes')}",
        "",
        f"{'':34}{'p50':>10}{'p99':>10}",
        _row("a turn, as the agent waits", [turn.wall_s for turn in commands]),
        _row("  of it the way there and back", [turn.overhead_s or 0.0 for turn in commands]),
    ]
    if rest is not None and rest.played:
        same = {turn.turn.thought for turn in rest.played}
        shared = [turn for turn in commands if turn.turn.thought in same]
        lines += [
            "",
            f"the {len(shared)} of these commands that one HTTP call each can run",
            f"({rest.left_out} turns need something that lives between calls):",
            _row("  over the session", [turn.wall_s for turn in shared]),
            _row("  over REST", [turn.wall_s for turn in rest.played]),
            f"  over the session {_in_all(shared)} in all, over REST {_in_all(rest.played)},",
            f"  which sent {rest.repeated_bytes} bytes of state again",
        ]
    return "\n".join(lines)


def _in_all(played: Sequence[Played]) -> str:
    return f"{sum(turn.wall_s for turn in played):.2f} s"


def _row(name: str, seconds: Sequence[float]) -> str:
    return f"{name:<34}{_percentile(seconds, 0.5) * 1e3:>7.1f} ms{_percentile(seconds, 0.99) * 1e3:>7.1f} ms"


def _bytes(played: Sequence[Played], name: str) -> str:
    return f"{sum(getattr(turn, name) for turn in played)} bytes"
