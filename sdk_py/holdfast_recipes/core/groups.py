"""The group filter: which groups of rollouts may enter a training batch (P §3.3.3, §4.4).

Owns the rules and the names of the reasons, which are counted. Does not choose the rollouts of a group (``balance``) nor replace a
group that was dropped: the rollout manager over-samples prompts for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .scored import Blame, Scored, Status, is_usable


class Reason(StrEnum):
    """Why a group was dropped."""

    INCOMPLETE = "incomplete"
    INFRASTRUCTURE = "infrastructure"
    TOO_FEW_USABLE = "too_few_usable"
    ZERO_VARIANCE = "zero_variance"


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The thresholds. ``most_infrastructure`` None means ⌊N/4⌋ of the group; ``tolerance`` is how far apart rewards must be."""

    least_usable: int = 2
    most_infrastructure: int | None = None
    tolerance: float = 1e-9
    usable: Callable[[Scored], bool] = is_usable


@dataclass(frozen=True, slots=True)
class Verdict:
    keep: bool
    reason: Reason | None = None


KEEP = Verdict(keep=True)


def admit(group: Sequence[Scored], rules: GroupRules | None = None) -> Verdict:
    """Whether a group may be trained on, and if not the first reason, in the order of ``Reason``.

    Dropped are: a group with a finished rollout that has no tokens, or no reward though nothing but the policy is to blame (a grader
    that failed is blamed on infrastructure or environment, and that rollout merely carries no loss); more than ⌊N/4⌋ rollouts aborted
    by infrastructure; fewer than two usable; all usable rewards equal, whatever their value (P §4.4 names all 0 and all +1).
    """
    rules = rules or GroupRules()
    usable = [rollout for rollout in group if rules.usable(rollout)]
    excused = (Blame.INFRASTRUCTURE, Blame.ENVIRONMENT)
    ungraded = [rollout for rollout in group if rollout.finished and rollout.reward is None and rollout.blame not in excused]
    if ungraded or any(rollout.length == 0 or rollout.reward is None for rollout in usable):
        return Verdict(False, Reason.INCOMPLETE)
    aborted = sum(rollout.status is Status.ABORTED and rollout.blame is Blame.INFRASTRUCTURE for rollout in group)
    most = len(group) // 4 if rules.most_infrastructure is None else rules.most_infrastructure
    if aborted > most:
        return Verdict(False, Reason.INFRASTRUCTURE)
    if len(usable) < rules.least_usable:
        return Verdict(False, Reason.TOO_FEW_USABLE)
    rewards = [rollout.reward for rollout in usable if rollout.reward is not None]
    if not rewards or max(rewards) - min(rewards) <= rules.tolerance:
        return Verdict(False, Reason.ZERO_VARIANCE)
    return KEEP


def admit_all(groups: Iterable[Sequence[Scored]], rules: GroupRules | None = None) -> tuple[list[Sequence[Scored]], Counter[Reason]]:
    """The groups that are kept, in order, and how many were dropped for each reason."""
    kept: list[Sequence[Scored]] = []
    dropped: Counter[Reason] = Counter()
    for group in groups:
        verdict = admit(group, rules)
        if verdict.reason is None:
            kept.append(group)
        else:
            dropped[verdict.reason] += 1
    return kept, dropped
