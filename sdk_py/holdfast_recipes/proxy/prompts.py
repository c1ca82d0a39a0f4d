"""From the messages of a request to the token ids of a prompt, with the sampled ids of earlier answers in their places (C4.1).

Owns the rule for sampled ids in a later prompt: they are used if all ids before them are equal and the template renders the turn
unchanged. All other text is encoded piece by piece. Thoughts that a client did not send back are restored first, so that the template
decides about them, not the dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from holdfast_recipes.core.template import Kind, Piece, render, text_of
from holdfast_recipes.policy.tokenizer import Tokenizer

Message = Mapping[str, Any]

END = "<|im_end|>"
_CACHED_PIECES = 4096


class Prompts:
    """Prompts of one rollout. ``opens_thought`` as for ``template.render``; ``restore_thoughts=False`` shows the policy only what the
    client sent."""

    def __init__(self, tokenizer: Tokenizer, *, opens_thought: bool = False, restore_thoughts: bool = True) -> None:
        self.opens_thought = opens_thought
        self.end_ids = tuple(tokenizer.encode(END))
        self._restores = restore_thoughts
        self._encode = lru_cache(maxsize=_CACHED_PIECES)(lambda text: tuple(tokenizer.encode(text)))
        self._thoughts: dict[str, str] = {}
        self._held: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}

    def ids(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> tuple[int, ...]:
        """[T] the prompt after which the policy writes its next turn."""
        shown = [self._with_thought(message) for message in messages]
        pieces = render(shown, tools, generation_prompt=True, opens_thought=self.opens_thought)
        opening = self._encode(pieces[-1].text)
        ids: list[int] = []
        for _, group in groupby(pieces, key=lambda piece: piece.message):
            written = list(group)
            held = self._held.get(_content(written), []) if written[0].role == "assistant" else []
            start = len(ids)
            sampled = next(
                (output for prompt, output in reversed(held) if prompt[:start] == tuple(ids) and prompt[start:] == opening), None
            )
            if sampled is None:
                ids += [token for piece in written for token in self._encode(piece.text)]
            else:
                ids += [*opening, *sampled]
                ids += [token for piece in written if piece.kind in (Kind.END, Kind.GLUE) for token in self._encode(piece.text)]
        return tuple(ids)

    def without_end(self, output_ids: Sequence[int]) -> tuple[int, ...]:
        """The ids of a turn's text: the end token, where one was sampled, is no part of it."""
        size = len(self.end_ids)
        ended = size and tuple(output_ids[-size:]) == self.end_ids
        return tuple(output_ids[:-size] if ended else output_ids)

    def remember(self, message: Message, prompt_ids: tuple[int, ...], output_ids: Sequence[int]) -> None:
        """An answer that a client has: the assistant message as a later request gives it, and the ids it was."""
        if thought := str(message.get("reasoning_content") or ""):
            self._thoughts.update((call, thought) for call in _call_ids(message))
        # as it stands within a chain of calls, where the template keeps thoughts
        chain = [{"role": "user", "content": ""}, message, {"role": "tool", "content": ""}]
        turn = [piece for piece in render(chain, opens_thought=self.opens_thought) if piece.message == 1]
        self._held.setdefault(_content(turn), []).append((prompt_ids, self.without_end(output_ids)))

    def _with_thought(self, message: Message) -> Message:
        if not self._restores or message.get("role") != "assistant" or message.get("reasoning_content"):
            return message
        thought = next((self._thoughts[call] for call in _call_ids(message) if call in self._thoughts), None)
        return message if thought is None else {**message, "reasoning_content": thought}


def _content(turn: Sequence[Piece]) -> str:
    """The text of a turn with its opening, which differs if the template drops a thought."""
    return text_of([piece for piece in turn if piece.kind in (Kind.HEADER, Kind.CONTENT)])


def _call_ids(message: Message) -> list[str]:
    """The ids of a turn's calls, which the proxy gave. A turn without calls is followed by a user, and its thought is gone by then."""
    return [str(call["id"]) for call in message.get("tool_calls") or () if call.get("id")]
