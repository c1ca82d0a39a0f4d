"""The suites by name, as a plain table. A suite of another domain joins it as one more row, with a kind that plays its tasks.

Owns names, sources and defaults. How tasks of a kind are read and played is ``kinds``'s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suite:
    """``kind`` is a key of ``kinds.KINDS``; ``source`` the format of its rows where that kind has several; ``data`` where its tasks come
    from, for the user; ``rollouts`` and ``tokens`` are the usual number of trials and the context."""

    kind: str
    title: str
    data: str
    source: str = ""
    rollouts: int = 1
    tokens: int = 128 * 1024


_HUB = "https://huggingface.co/datasets/"

SUITES: dict[str, Suite] = {
    "swe-bench": Suite("swe", "SWE-bench", f"{_HUB}SWE-bench/SWE-bench, split test", "swe_bench"),
    "swe-bench-lite": Suite("swe", "SWE-bench Lite", f"{_HUB}SWE-bench/SWE-bench_Lite, split test", "swe_bench"),
    "swe-bench-verified": Suite("swe", "SWE-bench Verified", f"{_HUB}SWE-bench/SWE-bench_Verified, split test", "swe_bench"),
    "swe-bench-multilingual": Suite("swe", "SWE-bench Multilingual", f"{_HUB}SWE-bench/SWE-bench_Multilingual, split test", "swe_bench"),
    "swe-rebench": Suite("swe", "SWE-rebench leaderboard", f"{_HUB}nebius/SWE-rebench-leaderboard", "swe_rebench"),
    "own": Suite("swe", "Tasks of `holdfast recipes mutate`", "tasks.jsonl of that command"),
    "terminal-bench-2": Suite(
        "harbor", "Terminal-Bench 2.0", "https://github.com/laude-institute/terminal-bench-2, a folder for each task", rollouts=5
    ),
    "harbor": Suite("harbor", "Tasks in Harbor's format", "a folder of tasks, or the folder of one"),
}
