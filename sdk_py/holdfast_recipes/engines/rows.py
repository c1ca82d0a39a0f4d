"""A rollout as a training engine takes it: prompt and response ids, mask, log-probabilities and a reward. Pure.

Owns where the prompt ends, which rollouts carry loss, and the row that stands in for one that does not: engines want a fixed number of
rows and at least one token in each part. Ids are those that were sampled; nothing here is tokenized. Records of an engine are its
adapter's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast_recipes.core.advantage import Deviation, advantages
from holdfast_recipes.core.balance import Outcome
from holdfast_recipes.core.groups import Reason
from holdfast_recipes.core.scored import Blame, Scored, Status, is_usable
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.samples import first_token_of


@dataclass(frozen=True, slots=True)
class Row:
    """[P] prompt ids up to the first sampled token, and everything after it: [R] ids, mask (1 = sampled, gets loss), log-probabilities.

    ``reward`` None: the row carries no loss and is left out of its group's mean and deviation; its mask is zero throughout. ``advantage``
    is relative to its group, 0.0 for such a row. ``reason``: why it ended, or why it carries no loss.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float | None = None
    advantage: float = 0.0
    status: Status = Status.ABORTED
    blame: Blame | None = None
    reason: str = ""
    versions: tuple[int, ...] = ()
    turns: int = 0
    rollout: str = ""

    def __post_init__(self) -> None:
        if not len(self.response_ids) == len(self.mask) == len(self.logprobs):
            raise ValueError("a row needs one mask bit and one log-probability for each token of its response")
        if not self.prompt_ids or not self.response_ids:
            raise ValueError("a row needs a token in its prompt and one in its response")
        if self.reward is None and any(self.mask):
            raise ValueError("a row without a reward cannot carry loss")

    @property
    def masked(self) -> bool:
        return self.reward is None

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids


def row_of(run: Trajectory | None, *, filler: int = 0, reason: str = "") -> Row:
    """The row of one rollout. ``filler`` is any token id, for rollouts that have none. A given ``reason`` masks the row.

    Of a rollout of a tree, the turns that it shares with others carry no loss: an engine takes one row for each rollout, so that they would
    count once for each. ``pipeline.samples`` gives them a sample of their own.

    Masked are, beside those: what did not finish, has no reward or no sampled token, and what holds a number that is not finite (one such
    number would spoil the optimiser's step). ``run`` None is a rollout of which nothing is left.
    """
    if run is None:
        return Row((filler,), (filler,), (0,), (0.0,), reason=reason or "lost")
    tokens = run.tokens
    ids = tokens.ids if tokens else ()
    mask = tokens.loss_mask if tokens else ()
    start = mask.index(1) if 1 in mask else len(ids)
    why = reason or _without_loss(run)
    if tokens is None or why:
        made = Row(ids[:start] or (filler,), ids[start : start + 1] or (filler,), (0,), (0.0,))
    else:
        own = max(start, first_token_of(run.branch.turn, tokens)) if run.branch else start
        made = Row(ids[:start], ids[start:], (*(0,) * (own - start), *mask[own:]), tokens.logprobs[start:], run.reward)
    return replace(
        made,
        status=run.status,
        blame=run.blame,
        reason=why or run.reason,
        versions=tokens.versions if tokens else (),
        turns=len(run.turns),
        rollout=run.trajectory_id,
    )


def rows_of(outcome: Outcome, dropped: Reason | None = None, *, filler: int = 0, std: Deviation = "sample") -> list[Row]:
    """[N] rows of a group in the order of its members, with advantages. A group that the filter ``dropped`` is masked as a whole."""
    rows = []
    for member in outcome.members:
        reason = f"group_{dropped}" if dropped else ""
        if not reason and member.remove_sample and is_usable(member.rollout):
            reason = "removed"
        rows.append(_row_of(member.rollout, filler, reason))
    each = advantages([row.reward for row in rows], std=std)
    return [replace(row, advantage=advantage) for row, advantage in zip(rows, each, strict=True)]


def fit(row: Row, prompt_length: int, response_length: int) -> Row:
    """The row within an engine's fixed widths. The end of a prompt that is too long moves into the response, where its mask is zero: the
    sequence stays what the policy saw. What is beyond both widths is cut off; a row that loses all of its sampled tokens is masked."""
    if prompt_length < 1 or response_length < 1:
        raise ValueError(f"prompt and response need room for a token each: {prompt_length}, {response_length}")
    over = max(0, len(row.prompt_ids) - prompt_length)
    moved = row.prompt_ids[len(row.prompt_ids) - over :]
    ids = (moved + row.response_ids)[:response_length]
    mask = ((0,) * over + row.mask)[:response_length]
    logprobs = ((0.0,) * over + row.logprobs)[:response_length]
    cut = over + len(row.response_ids) > response_length
    made = replace(row, prompt_ids=row.prompt_ids[: len(row.prompt_ids) - over], response_ids=ids, logprobs=logprobs, mask=mask)
    if cut and not row.masked:
        made = replace(made, status=Status.TRUNCATED)
        return made if any(mask) else replace(made, reward=None, advantage=0.0, reason="too_long")
    return made


def _row_of(rollout: Scored, filler: int, reason: str) -> Row:
    payload = rollout.payload
    if isinstance(payload, Trajectory):
        if not reason and not is_usable(rollout):  # a rollout that the batch judged, e.g. stale, though the trajectory itself is whole
            reason = _without_loss(payload) or "unusable"
        return row_of(payload, filler=filler, reason=reason)
    return replace(row_of(None, filler=filler, reason=reason), status=rollout.status, blame=rollout.blame)


def _without_loss(run: Trajectory) -> str:
    """Why a rollout carries no loss; "" for one that does."""
    numbers: Sequence[float] = run.tokens.logprobs if run.tokens else ()
    if (run.reward is not None and not math.isfinite(run.reward)) or not all(map(math.isfinite, numbers)):
        return "not_finite"
    if run.status not in (Status.COMPLETED, Status.TRUNCATED) or run.reward is None:
        return run.reason or str(run.status)
    if run.tokens is None or 1 not in run.tokens.loss_mask:
        return "no_tokens"
    return "" if run.tokens.loss_mask[0] == 0 else "no_prompt"
