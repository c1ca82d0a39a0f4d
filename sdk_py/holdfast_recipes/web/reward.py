"""The reward of a browser rollout: what its turns and the judge's verdict come to (P §4.4; G3, G4).

Owns the table and the reading of a verdict. Asking a judge and seeing a captcha is the browser layer's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

_NOT_SUCCESS = re.compile(r"\bNOT[\s_-]+SUCCESS\b")
_SUCCESS = re.compile(r"\bSUCCESS\b")


class Verdict(StrEnum):
    """What a judge said. ``MISSING``: it answered without a verdict, a failure. ``UNREACHABLE``: it did not answer, which says nothing
    of the rollout."""

    SUCCESS = "success"
    FAILURE = "failure"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


def read_verdict(answer: str | None) -> Verdict:
    """The verdict in a judge's answer, None for no answer. NOT SUCCESS is looked for first, for it contains the other."""
    if answer is None:
        return Verdict.UNREACHABLE
    if _NOT_SUCCESS.search(answer):
        return Verdict.FAILURE
    return Verdict.SUCCESS if _SUCCESS.search(answer) else Verdict.MISSING


def ended_by_format(parsed: Sequence[bool], in_a_row: int = 3) -> bool:
    """Whether the rollout ended because that many turns in a row could not be parsed. ``parsed`` has one entry per turn."""
    return len(parsed) >= in_a_row and not any(parsed[-in_a_row:])


def reward(parsed: Sequence[bool], verdict: Verdict, *, captcha: bool = False, in_a_row: int = 3) -> float | None:
    """+1 where every turn parses and the judge says SUCCESS, −1 where repeated format failures ended the run, None (no loss) for a
    captcha or a judge that could not be reached, 0 for all else: also for a success with a turn that did not parse."""
    if captcha:
        return None
    if ended_by_format(parsed, in_a_row):
        return -1.0
    if verdict is Verdict.UNREACHABLE:
        return None
    return 1.0 if verdict is Verdict.SUCCESS and parsed and all(parsed) else 0.0
