"""Spans of tokens, the loss masks that follow from them, and cuts at their borders (P §3.3.1, §4.4, §5.2).

Owns the choice of the tokens of a sequence that get loss. A mask is over tokens: ``mask[t]`` is 1 if token t is a target; the logits that
predict it are at t − 1 (``logit_positions``). Spans are half-open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .template import Kind, Piece


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` … ``end`` − 1 of one kind and role. ``turn`` counts assistant messages from 0, None in others; ``message``
    counts all messages, so that spans of one message belong together."""

    start: int
    end: int
    role: str
    kind: Kind
    turn: int | None = None
    message: int = 0

    @property
    def supervised(self) -> bool:
        """The policy wrote it: content and end of an assistant message. Its header was given, and observations are others'."""
        return self.role == "assistant" and self.kind in (Kind.CONTENT, Kind.END)


def encode(pieces: Sequence[Piece], tokenize: Callable[[str], Sequence[int]]) -> tuple[list[int], list[Span]]:
    """[T] ids and the spans of the pieces, each tokenized by itself, so that no token crosses a border.

    For text that no policy sampled (SFT data). What was sampled keeps its ids and is never tokenized again.
    """
    ids: list[int] = []
    spans: list[Span] = []
    for piece in pieces:
        start = len(ids)
        ids.extend(tokenize(piece.text))
        if len(ids) > start:
            spans.append(Span(start, len(ids), piece.role, piece.kind, piece.turn, piece.message))
    return ids, spans


def loss_mask(spans: Sequence[Span], turns: Collection[int] | None, length: int) -> list[int]:
    """[T] 0/1: content and end tokens of the assistant turns in ``turns`` (all of them for None). Raises ValueError for spans that
    overlap or leave 0 … length, which would be masks of another sequence."""
    check(spans, length)
    mask = [0] * length
    for span in spans:
        if span.supervised and (turns is None or span.turn in turns):
            mask[span.start : span.end] = [1] * (span.end - span.start)
    return mask


def last_turn(spans: Sequence[Span]) -> int | None:
    """The last assistant turn of the sequence: ``loss_mask(spans, {last_turn(spans)}, …)`` is the GUI and pair mask."""
    return max((span.turn for span in spans if span.turn is not None and span.supervised), default=None)


def logit_positions(mask: Sequence[int]) -> list[int]:
    """Positions of the logits that get loss: one before each target. Token 0 has nothing before it and cannot be a target."""
    if mask and mask[0]:
        raise ValueError("the first token cannot be predicted")
    return [index - 1 for index, bit in enumerate(mask) if bit]


def trim_right(mask: Sequence[int]) -> int:
    """The number of leading tokens to keep: tokens after the last target do not change the loss (V8)."""
    return max((index + 1 for index, bit in enumerate(mask) if bit), default=0)


def truncate_left(ids: Sequence[int], spans: Sequence[Span], limit: int) -> tuple[list[int], list[Span]] | None:
    """Drop the oldest messages until at most ``limit`` tokens are left; None when no cut does that (K3).

    The system prompt, with its tools, stays. Cuts are at borders of messages, never before a tool result, whose call would be gone,
    and the last assistant turn stays with everything after it. Turn and message numbers are kept.
    """
    check(spans, len(ids))
    if len(ids) <= limit:
        return list(ids), list(spans)
    ordered = sorted(spans, key=lambda span: span.start)
    head = 0
    for span in ordered:
        if span.role != "system" or span.start != head:
            break
        head = span.end
    final = last_turn(ordered)
    end = next((span.start for span in ordered if span.turn is not None and span.turn == final), len(ids))
    starts = [span.start for before, span in pairwise(ordered) if before.message != span.message]
    roles = {span.start: span.role for span in ordered}
    for cut in starts:
        if head < cut <= end and roles[cut] != "tool" and head + len(ids) - cut <= limit:
            moved = [replace(span, start=span.start - cut + head, end=span.end - cut + head) for span in ordered if span.start >= cut]
            return [*ids[:head], *ids[cut:]], [*(span for span in ordered if span.end <= head), *moved]
    return None


def check(spans: Sequence[Span], length: int) -> None:
    """Raise ValueError unless the spans lie within the sequence, in any order, without overlap."""
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    if any(not 0 <= span.start <= span.end <= length for span in ordered):
        raise ValueError(f"a span leaves the {length} tokens of its sequence")
    if any(after.start < before.end for before, after in pairwise(ordered)):
        raise ValueError("two spans overlap")
