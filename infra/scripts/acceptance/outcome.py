"""The results of an acceptance test, step by step, and the verdict.

Owns the three words a step ends with (passed, failed, not run), the table and the report. A step that was not run has a reason and does not
count; a test passes only when something passed and nothing failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Word = Literal["passed", "failed", "not run"]


class NotRunError(Exception):
    """The step cannot be run here; the message is the reason."""


class StepError(Exception):
    """The step was run and failed."""


@dataclass(frozen=True, slots=True)
class Result:
    """``figures`` are numbers with their unit in the name."""

    step: str
    word: Word
    detail: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)


Step = Callable[[], dict[str, Any]]
"""Its figures, among them ``detail``. Raises ``NotRunError`` and ``StepError``; whatever else it raises is a failure, too."""


def take(name: str, step: Step) -> Result:
    """Run one step; an exception becomes its result."""
    began = time.monotonic()
    word: Word = "failed"
    figures: dict[str, Any] = {}
    try:
        figures = dict(step())
        word, detail = "passed", str(figures.pop("detail", ""))
    except NotRunError as error:
        word, detail = "not run", str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps are still to be taken
        detail = f"{'' if isinstance(error, StepError) else type(error).__name__ + ': '}{error}"
    return Result(name, word, " ".join(detail.split())[:600], round(time.monotonic() - began, 1), figures)


def passed(results: list[Result]) -> bool:
    """Nothing failed, and there is something that passed."""
    return any(one.word == "passed" for one in results) and not any(one.word == "failed" for one in results)


def line(one: Result) -> str:
    numbers = ", ".join(f"{name} {value}" for name, value in one.figures.items())
    word = one.word.upper() if one.word == "failed" else one.word
    return f"  {word:<8} {one.step:<24} {one.seconds:>7.1f} s  {'; '.join(filter(None, (one.detail, numbers)))}"


def verdict(results: list[Result]) -> str:
    counts = {word: sum(one.word == word for one in results) for word in ("passed", "failed", "not run")}
    return f"acceptance: {'passed' if passed(results) else 'FAILED'}; " + ", ".join(f"{count} {word}" for word, count in counts.items())


def write(path: Path, results: list[Result], about: dict[str, Any]) -> None:
    document = {**about, "passed": passed(results), "steps": [asdict(one) for one in results]}
    path.write_text(json.dumps(document, indent=2) + "\n")
