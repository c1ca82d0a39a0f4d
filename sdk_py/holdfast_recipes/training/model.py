"""A decoder-only transformer from scratch, small enough to learn on one core: rotary positions, a key-value cache, tied embeddings.

Owns the forward pass and its weights. Sampling is in ``policy``, objectives in ``loss``. With the defaults and the vocabulary of the
miniature it has about 110,000 parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """``width`` must be a multiple of twice the number of heads (rotary positions turn pairs)."""

    vocabulary: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"a width of {self.width} cannot be split into {self.heads} heads of pairs")


Cache = list[tuple[Tensor, Tensor]]
"""For each layer keys and values [B, heads, T, width / heads]."""


class Model(nn.Module):
    """``forward(ids[B, T]) -> logits[B, T, V]``; with a cache, ids continue what the cache holds, which grows in place."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.width)
            nn.init.normal_(self.embedding.weight, std=0.5 / math.sqrt(shape.width))
        turns = _turns(shape)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        past = cache[0][0].shape[2] if cache else 0
        length = ids.shape[1]
        if past + length > self.shape.context:
            raise ValueError(f"{past + length} tokens do not fit the context of {self.shape.context}")
        hidden = self.embedding(ids) * math.sqrt(self.shape.width)
        cos, sin = self.cos[past : past + length], self.sin[past : past + length]
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, cos, sin, cache, index)
        return functional.linear(self.norm(hidden), self.embedding.weight)

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention, self.before_feed = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.projections = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed = nn.Sequential(nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width))
        for layer in (self.out, self.feed[2]):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None, index: int) -> Tensor:
        rows, length, width = hidden.shape
        split = self.projections(self.before_attention(hidden)).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        queries, keys = _rotated(queries, cos, sin), _rotated(keys, cos, sin)
        past = 0
        if cache is not None:
            if index < len(cache):
                past = cache[index][0].shape[2]
                keys, values = torch.cat([cache[index][0], keys], 2), torch.cat([cache[index][1], values], 2)
                cache[index] = (keys, values)
            else:
                cache.append((keys, values))
        bias = None
        if past and length > 1:
            bias = torch.ones(length, past + length, dtype=torch.bool).tril(past)
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, is_causal=not past and length > 1)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.feed(self.before_feed(hidden))


def _turns(shape: Shape) -> Tensor:
    """[context, width / heads / 2] angles."""
    pairs = shape.width // shape.heads // 2
    rates = 1.0 / (10_000 ** (torch.arange(pairs) / pairs))
    return torch.outer(torch.arange(shape.context).float(), rates)


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = vectors.chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


def keep_rows(cache: Cache, rows: Tensor) -> None:
    """Leave only the given rows of the batch in a cache."""
    cache[:] = [(keys[rows], values[rows]) for keys, values in cache]
