"""The reward of a browser rollout: computed from its turns and the judge's verdict (P §4.4; G3, G4).

Owns the table and the reading of a verdict. The browser layer queries the judge and detects captchas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

_NEGATION = r"(?:not|no|never|non|nor|hardly|without|fail[a-z]*|cannot|[a-z]+n['’]t)"
_NOT_SUCCESS = re.compile(rf"(?<![a-z]){_NEGATION}(?:[\s_*-]+[a-z'’]+){{0,3}}?[\s_*-]+SUCCESS(?![a-z])", re.IGNORECASE)
_FAILURE = re.compile(r"\bFAIL(?:URE|ED)?\b")
_SUCCESS = re.compile(r"\bSUCCESS\b")


class Verdict(StrEnum):
    """The verdict of a judge. ``MISSING``: an answer without a verdict, which counts as a failure. ``UNREACHABLE``: no answer, so the
    rollout is not judged."""

    SUCCESS = "success"
    FAILURE = "failure"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


def read_verdict(answer: str | None) -> Verdict:
    """The verdict in a judge's answer, None for no answer. A negated SUCCESS, with up to three words between, is searched first ("NOT A
    SUCCESS", "isn't yet a SUCCESS", "FAILURE, not SUCCESS"): an answer that also holds a negated one is no success."""
    if answer is None:
        return Verdict.UNREACHABLE
    if _NOT_SUCCESS.search(answer) or _FAILURE.search(answer):
        return Verdict.FAILURE
    return Verdict.SUCCESS if _SUCCESS.search(answer) else Verdict.MISSING


def ended_by_format(parsed: Sequence[bool], in_a_row: int = 3) -> bool:
    """Whether the rollout ended because that many turns in a row could not be parsed. ``parsed`` has one entry per turn."""
    return len(parsed) >= in_a_row and not any(parsed[-in_a_row:])


def reward(parsed: Sequence[bool], verdict: Verdict, *, captcha: bool = False, in_a_row: int = 3) -> float | None:
    """+1 if every turn parses and the verdict is SUCCESS, −1 where repeated format failures ended the run, None (no loss) for a
    captcha or a judge that could not be reached, 0 for all else: also for a success with a turn that did not parse."""
    if captcha:
        return None
    if ended_by_format(parsed, in_a_row):
        return -1.0
    if verdict is Verdict.UNREACHABLE:
        return None
    return 1.0 if verdict is Verdict.SUCCESS and parsed and all(parsed) else 0.0
