"""Runs of a data set as the rows that trainers read, with loss on exactly the turns that credit assignment kept.

Owns which tokens or messages of a run get loss, and the fields of each engine's row. Token rows (TRL, verl, slime) carry ids and masks, so
that no template decides again; chat rows (LLaMA-Factory, Axolotl) carry a flag for each message. Files are the command line's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast_recipes.core.spans import encode, loss_mask, truncate_left
from holdfast_recipes.core.template import Kind, render
from holdfast_recipes.core.trajectory import Trajectory

Encode = Callable[[str], Sequence[int]]
UNCREDITED, TOO_LONG, NO_TARGET = "unresolved_without_credited_turns", "too_long", "no_turn_to_learn_from"


@dataclass(frozen=True, slots=True)
class Masked:
    """[T] ids and the tokens that get loss; ``turns`` are the credited ones, None for all."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    turns: frozenset[int] | None


def credited(run: Trajectory) -> frozenset[int] | None:
    """The turns that get loss: all (None) of a resolved run, unless another run of its tree has some of them; the credited ones of another
    run, which may be none."""
    return None if run.resolved and run.credited is None else frozenset(run.credited or ())


def masked(run: Trajectory, tokenize: Encode, limit: int | None = None) -> Masked | str:
    """Ids as they were sampled, where they were recorded; else those of the rendered messages, each piece tokenized by itself. Longer runs
    lose their oldest messages. A text is the reason for which the run gives no row."""
    turns = credited(run)
    if turns is not None and not turns:
        return UNCREDITED
    if run.tokens is not None and any(span.kind is Kind.CONTENT and span.turn is not None for span in run.tokens.spans):
        ids, spans = list(run.tokens.ids), list(run.tokens.spans)
    else:
        ids, spans = encode(render(run.messages, run.tools), tokenize)
    if limit is not None:
        cut = truncate_left(ids, spans, limit)
        if cut is None:
            return TOO_LONG
        ids, spans = cut
    mask = loss_mask(spans, turns, len(ids))
    return Masked(tuple(ids), tuple(mask), turns) if any(mask) else NO_TARGET


def trl(run: Trajectory, made: Masked) -> dict[str, Any]:
    """TRL's trainer takes rows with ``input_ids`` as tokenized, and gives loss where ``assistant_masks`` is 1 (and, with
    ``completion_only_loss``, where ``completion_mask`` is)."""
    return {"input_ids": list(made.ids), "assistant_masks": list(made.mask), "completion_mask": list(made.mask)}


def verl(run: Trajectory, made: Masked) -> dict[str, Any]:
    """For ``engines.verl_sft.MaskedDataset`` (``data.custom_cls``): verl's own reader gives every assistant message loss."""
    return {"input_ids": list(made.ids), "loss_mask": list(made.mask)}


def slime(run: Trajectory, made: Masked) -> dict[str, Any]:
    """The fields of slime's Sample: the response begins at the first token that gets loss, and ``loss_mask`` is of the response. Its reader
    of messages takes ``step_loss_mask`` of each."""
    start = made.mask.index(1)
    messages = [
        {**message, **({"step_loss_mask": int(train)} if message["role"] == "assistant" else {})}
        for message, train in _flagged(run, made.turns)
    ]
    response = list(made.mask[start:])
    return {
        "tokens": list(made.ids),
        "response_length": len(response),
        "loss_mask": response,
        "reward": run.reward,
        "messages": messages,
        "tools": [dict(tool) for tool in run.tools],
    }


def axolotl(run: Trajectory, made: Masked) -> dict[str, Any]:
    """For ``type: chat_template`` with ``roles_to_train: []`` and ``message_field_training: train``: true on the turns with loss."""
    return {"messages": [{**message, "train": train} for message, train in _flagged(run, made.turns)], "tools": _tools(run)}


def llama_factory(run: Trajectory, made: Masked) -> dict[str, Any]:
    """A sample of LLaMA-Factory's v1 data engine: parts of content with a type, and ``loss_weight`` of each message. (Its older engine has
    no flag for a turn.)"""
    messages = []
    for message, train in _flagged(run, made.turns):
        parts = [{"type": "reasoning", "value": message["reasoning_content"]}] if message.get("reasoning_content") else []
        if text := message.get("content"):
            parts.append({"type": "text", "value": text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)})
        for call in message.get("tool_calls") or ():
            function = call.get("function") or call
            arguments = function.get("arguments")
            value = {"name": function.get("name"), "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
            parts.append({"type": "tool_call", "value": json.dumps(value, ensure_ascii=False)})
        messages.append({"role": message["role"], "content": parts, "loss_weight": 1.0 if train else 0.0})
    return {"messages": messages, "tools": json.dumps(_tools(run), ensure_ascii=False)}


ENGINES: Mapping[str, Callable[[Trajectory, Masked], dict[str, Any]]] = {
    "trl": trl,
    "verl": verl,
    "slime": slime,
    "axolotl": axolotl,
    "llama-factory": llama_factory,
}


@dataclass(slots=True)
class Counts:
    """Of an export: rows, tokens that get loss, and runs without a row by reason."""

    rows: int = 0
    targets: int = 0
    tokens: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def exported(
    runs: Iterable[Trajectory], engine: str, tokenize: Encode, counts: Counts, *, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of runs, in order."""
    for run in runs:
        made = masked(run, tokenize, limit)
        if isinstance(made, str):
            counts.left_out[made] = counts.left_out.get(made, 0) + 1
            continue
        counts.rows, counts.targets, counts.tokens = counts.rows + 1, counts.targets + sum(made.mask), counts.tokens + len(made.ids)
        yield ENGINES[engine](run, made)


def _flagged(run: Trajectory, turns: frozenset[int] | None) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each message with whether it gets loss."""
    turn = 0
    for message in run.messages:
        mine = message["role"] == "assistant"
        yield {key: value for key, value in message.items() if value is not None}, mine and (turns is None or turn in turns)
        turn += mine


def _tools(run: Trajectory) -> list[dict[str, Any]]:
    return [dict(tool) for tool in run.tools]
