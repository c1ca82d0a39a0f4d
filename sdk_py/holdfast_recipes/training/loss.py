"""The two objectives on tensors (C3): cross-entropy on chosen tokens, and the clipped policy objective.

Owns tensors only; ``core.objective`` is the reference in plain Python that these must agree with. Masks are over tokens: ``mask[b, t]``
is 1 if token t is a target. Rows may have any padding where the mask is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from holdfast_recipes.core.objective import Reduce


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """[B, T] log-probability of each token from the logits [B, T, V] before it; 0.0 for token 0, which nothing predicts."""
    picked = logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return functional.pad(picked, (1, 0))


def reduced(losses: Tensor, mask: Tensor, how: Reduce = "token_mean", const: float | None = None, weight: Tensor | None = None) -> Tensor:
    """One number from losses [B, T], as ``core.objective.reduced``. ``weight`` [B] multiplies each row (1/K of a pair, Z14) and
    counts in the denominators too. A batch without targets gives 0.0, with a gradient of zero."""
    if const is not None and (how != "token_sum" or const <= 0):
        raise ValueError("a positive constant divides a token_sum, nothing else")
    bits = mask.to(losses.dtype)
    kept = torch.where(mask.bool(), losses, torch.zeros_like(losses))
    factor = torch.ones(len(losses), dtype=losses.dtype) if weight is None else weight.to(losses.dtype)
    if how == "token_mean":
        return (kept.sum(1) * factor).sum() / (bits.sum(1) * factor).sum().clamp_min(_TINY)
    if how == "token_sum":
        return (kept.sum(1) * factor).sum() / (const or 1.0)
    if how == "sequence_mean":
        has = (bits.sum(1) > 0).to(losses.dtype) * factor
        return (kept.sum(1) / bits.sum(1).clamp_min(1.0) * factor).sum() / has.sum().clamp_min(_TINY)
    raise ValueError(f"unknown reduction {how!r}")


_TINY = 1e-12


def sft_loss(
    logits: Tensor, ids: Tensor, mask: Tensor, *, reduce: Reduce = "token_mean", const: float | None = None, weight: Tensor | None = None
) -> Tensor:
    """−log π of the tokens of ``ids`` [B, T] under ``mask`` [B, T]; shifts by one itself."""
    _check(ids, mask)
    return reduced(-token_logprobs(logits, ids), mask, reduce, const, weight)


def policy_loss(
    logp: Tensor,
    old: Tensor,
    adv: Tensor,
    mask: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.28,
    reduce: Reduce = "token_mean",
    const: float | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)A) with ρ = exp(logp − old) for [B, T] tokens and [B] advantages (P §4.4).

    ``old`` are the log-probabilities at the time of the rollout. Where the clip took effect there is no gradient.
    """
    _check(logp, mask)
    ratio = torch.where(mask.bool(), logp - old, torch.zeros_like(logp)).exp()
    each = adv[:, None]
    losses = -torch.minimum(ratio * each, ratio.clamp(1 - low, 1 + high) * each)
    return reduced(losses, mask, reduce, const, weight)


def _check(tokens: Tensor, mask: Tensor) -> None:
    if tokens.shape != mask.shape:
        raise ValueError(f"tokens {tuple(tokens.shape)} and mask {tuple(mask.shape)} must have the same shape")
    if mask.shape[1] and bool(mask[:, 0].any()):
        raise ValueError("the first token cannot be predicted")
