"""Issue texts of mutation tasks, made from what a failing test printed, without saying where the bug is.

Owns the wording and what is left out: files and lines of the library, tracebacks, the names of test files. The test's own words (its
name, the comparison that failed) are what a user who found the bug would report.
"""

from __future__ import annotations

import random
import re

_ASSERTION = re.compile(r"^E\s+(.*)$", re.MULTILINE)
_FILE = re.compile(r"(?:[\w.\-]*/)*[\w\-]+\.pyi?(?::\d+)?|(?<![\w/.])/(?:[\w.\-]+/)+[\w.\-]+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_OPENINGS = (
    "I ran into wrong behaviour while using {project}.",
    "Something in {project} gives wrong results since the last change.",
    "{project} does not do what its documentation says.",
)


def issue_text(project: str, test: str, output: str, *, seed: int = 0, most_characters: int = 600) -> str:
    """A short issue for a bug in ``project`` that the test with this node id shows; ``output`` is pytest's of its failure."""
    opening = random.Random(seed).choice(_OPENINGS).format(project=project)  # noqa: S311  wording, no secret
    words = re.sub(r"\[.*", "", test.rpartition("::")[2]).removeprefix("test_").replace("_", " ").strip()
    lines = [opening, "", f"It shows when checking: {words}."]
    if seen := failure(output):
        lines += ["", "What I see:", "", *(f"    {line}" for line in seen[:most_characters].splitlines())]
    return "\n".join([*lines, "", "Please find the cause and fix it in the library itself."])


def failure(output: str) -> str:
    """The lines in which pytest explains failures (``E   …``), each once, without places."""
    lines = dict.fromkeys(_ADDRESS.sub("", _FILE.sub("…", line)).rstrip() for line in _ASSERTION.findall(output))
    return "\n".join(line for line in lines if line.strip(" ^"))
