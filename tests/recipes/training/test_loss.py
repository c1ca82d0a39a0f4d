"""The tensor objectives against the reference in plain Python, D2's arithmetic and D5's clip, and what must have no gradient."""

from __future__ import annotations

import math
import random

import pytest
import torch
from holdfast_recipes.core.objective import Reduce, clipped, reduced
from holdfast_recipes.training import loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "has_gradient"),
    [(1.5, 1.0, -1.28, False), (0.5, 1.0, -0.5, True), (1.5, -1.0, 1.5, True), (0.5, -1.0, 0.8, False)],
)
def test_clip_of_one_token(ratio: float, advantage: float, value: float, has_gradient: bool) -> None:
    logp = torch.tensor([[0.0, math.log(ratio)]], requires_grad=True)
    result = loss.policy_loss(logp, torch.zeros(1, 2), torch.tensor([advantage]), torch.tensor([[0.0, 1.0]]))
    result.backward()
    assert result.item() == pytest.approx(value, abs=1e-6)
    assert logp.grad is not None
    assert bool(logp.grad[0, 1].abs() > 0) is has_gradient
    assert logp.grad[0, 0] == 0


@pytest.mark.parametrize("how", ["token_mean", "token_sum", "sequence_mean"])
@pytest.mark.parametrize("seed", range(5))
def test_policy_loss_is_the_reference(how: Reduce, seed: int) -> None:
    draw = random.Random(seed)
    rows, length = 4, 6
    new = [[draw.gauss(-1, 1) for _ in range(length)] for _ in range(rows)]
    old = [[draw.gauss(-1, 1) for _ in range(length)] for _ in range(rows)]
    each = [draw.gauss(0, 1) for _ in range(rows)]
    mask = [[0, *(draw.randrange(2) for _ in range(length - 1))] for _ in range(rows - 1)] + [[0] * length]
    const = 7.0 if how == "token_sum" else None
    expected = reduced(
        [[clipped(math.exp(a - b), adv).loss for a, b in zip(x, y, strict=True)] for x, y, adv in zip(new, old, each, strict=True)],
        mask,
        how,
        const,
    )
    got = loss.policy_loss(
        torch.tensor(new),
        torch.tensor(old),
        torch.tensor(each),
        torch.tensor(mask),
        reduce=how,
        const=const,
    )
    assert got.item() == pytest.approx(expected, rel=1e-5)


def test_sft_reductions_of_d2() -> None:
    """A of 13 tokens with a loss of 1 each, B of 2 with 4: token mean 1.4, sequence mean 2.5, sum 21."""
    losses, mask = torch.zeros(2, 14), torch.zeros(2, 14)
    losses[0, 1:14], mask[0, 1:14] = 1.0, 1.0
    losses[1, 1:3], mask[1, 1:3] = 4.0, 1.0
    losses[1, 3:] = math.nan  # padding never counts, whatever it holds
    assert [loss.reduced(losses, mask, how).item() for how in ("token_mean", "sequence_mean", "token_sum")] == pytest.approx(
        [1.4, 2.5, 21.0]
    )


def test_sft_loss_shifts_by_one_and_spares_what_is_masked() -> None:
    logits = torch.randn(1, 4, 5, requires_grad=True)
    ids, mask = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    result = loss.sft_loss(logits, ids, mask)
    assert result.item() == pytest.approx(-logits.log_softmax(-1)[0, 1, 3].item())
    result.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum(-1).nonzero().tolist() == [[0, 1]]


def test_weights_make_a_rollout_with_three_branches_count_once() -> None:
    logits, ids = torch.randn(4, 3, 5), torch.randint(5, (4, 3))
    mask = torch.tensor([[0, 1, 1]] * 4)
    same = logits.clone()
    same[1:3] = logits[0]
    ids[1:3] = ids[0]
    one = loss.sft_loss(same[[0, 3]], ids[[0, 3]], mask[[0, 3]])
    three = loss.sft_loss(same, ids, mask, weight=torch.tensor([1 / 3, 1 / 3, 1 / 3, 1.0]))
    assert three.item() == pytest.approx(one.item(), rel=1e-5)


def test_refusals() -> None:
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError, match="first token"):
        loss.policy_loss(ones, ones, torch.ones(1), ones)
    with pytest.raises(ValueError, match="same shape"):
        loss.policy_loss(ones, ones, torch.ones(1), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="token_sum"):
        loss.reduced(ones, torch.tensor([[0, 1]]), "token_mean", 3.0)
    assert loss.reduced(ones, torch.zeros(1, 2)).item() == 0.0


def test_far_apart_ratios_of_masked_tokens_do_no_harm() -> None:
    logp = torch.tensor([[0.0, 500.0, -1.0]], requires_grad=True)
    result = loss.policy_loss(logp, torch.tensor([[0.0, -500.0, -1.0]]), torch.ones(1), torch.tensor([[0, 0, 1]]))
    result.backward()
    assert result.item() == pytest.approx(-1.0)
    assert logp.grad is not None
    assert logp.grad.isfinite().all()
