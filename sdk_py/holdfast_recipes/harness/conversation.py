"""The conversation of the loop with a policy: messages for an endpoint that takes messages, token ids for one that takes ids.

Owns the chat record and, with ``TokenConversation``, the ids exactly as they were sampled, with masks, log-probabilities and spans.
Ids are only appended: a policy is trained on exactly the tokens that it saw, and no text is tokenized twice, even where a template would
drop the thoughts of earlier turns. A request changes no state, so it may be repeated; ``take`` adds the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast_recipes.core import template
from holdfast_recipes.core.calls import CallError, Parsed, ToolCall, parse_message, parse_text
from holdfast_recipes.core.spans import Span
from holdfast_recipes.core.template import Kind, Piece
from holdfast_recipes.core.trajectory import Tokens
from holdfast_recipes.policy.base import ChatPolicy, Generation, Message, Policy, Reply, Tool
from holdfast_recipes.policy.tokenizer import Tokenizer

Answer = TypeVar("Answer")


class Render(Protocol):
    """As ``core.template.render``."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation_prompt: bool = False, opens_thought: bool = False
    ) -> list[Piece]: ...


Parse = Callable[[str, Sequence[Tool]], Parsed]


@dataclass(frozen=True, slots=True)
class Format:
    """The functions between messages, text and calls. The default is Qwen's; small policies may have shorter ones.

    ``opens_thought``: the header of a turn ends within the thought. ``stop``: the texts of tokens that end a turn.
    """

    render: Render = template.render
    parse: Parse | None = None
    opens_thought: bool = False
    stop: tuple[str, ...] = ("<|im_end|>",)

    def parsed(self, text: str, tools: Sequence[Tool]) -> Parsed:
        return self.parse(text, tools) if self.parse else parse_text(text, tools, thinking=self.opens_thought)


class Conversation(Protocol[Answer]):
    """One rollout's dialogue with a policy."""

    messages: list[Message]

    @property
    def policy_name(self) -> str: ...
    @property
    def tokens(self) -> int:
        """The length of the context so far."""
        ...

    @property
    def cost_usd(self) -> float: ...
    @property
    def version(self) -> int:
        """Of the weights that gave the last answer."""
        ...

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None: ...
    async def ask(self, *, seed: int | None, max_new_tokens: int) -> Answer:
        """The policy's next turn. Raises PolicyError; changes nothing."""
        ...

    def take(self, answer: Answer) -> Parsed:
        """Record a turn; its calls carry ids."""
        ...

    def answer(self, entry: ToolCall | CallError, text: str) -> None:
        """Record what a call, or a turn's error, was answered with."""
        ...

    def record(self) -> Tokens | None:
        """The ids with their masks; None where they are not known."""
        ...


class ChatConversation:
    """With a policy that takes messages. Calls that a model wrote into its text become calls of the message, for endpoints that want
    each result to name its call."""

    def __init__(self, policy: ChatPolicy) -> None:
        self.messages: list[Message] = []
        self.tokens, self.cost_usd, self.version = 0, 0.0, 0
        self._policy = policy
        self._tools: tuple[Tool, ...] = ()

    @property
    def policy_name(self) -> str:
        return self._policy.name

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self.messages, self._tools = list(messages), tuple(tools)

    async def ask(self, *, seed: int | None, max_new_tokens: int) -> Reply:
        return await self._policy.reply(tuple(self.messages), self._tools, seed=seed, max_new_tokens=max_new_tokens)

    def take(self, answer: Reply) -> Parsed:
        self.tokens = answer.prompt_tokens + answer.completion_tokens
        self.cost_usd += answer.cost_usd
        self.version = answer.version
        turn = _turns(self.messages)
        message = dict(answer.message) | {"role": "assistant"}
        if message.get("tool_calls"):
            message["tool_calls"] = [_with_id(call, turn, number) for number, call in enumerate(message["tool_calls"])]
            parsed = parse_message(message, self._tools)
        else:
            parsed = _identified(parse_message(message, self._tools), turn)
            if parsed.calls and not parsed.errors:
                message = _structured(parsed)
        self.messages.append(message)
        return parsed

    def answer(self, entry: ToolCall | CallError, text: str) -> None:
        listed = [call.get("id") for call in _last_assistant(self.messages).get("tool_calls") or () if isinstance(call, dict)]
        result = {"role": "tool", "tool_call_id": entry.id, "content": text}
        self.messages.append(result if entry.id and entry.id in listed else template.observation(text))

    def record(self) -> None:
        return None


class TokenConversation:
    """With a policy that takes ids. ``format`` is how text and messages follow from each other."""

    def __init__(self, policy: Policy, tokenizer: Tokenizer, format: Format | None = None) -> None:  # noqa: A002
        self.messages: list[Message] = []
        self.cost_usd, self.version = 0.0, 0
        self._policy, self._tokenizer, self._format = policy, tokenizer, format or Format()
        self._stop = frozenset(token for text in self._format.stop for token in [_single(tokenizer, text)])
        self._tools: tuple[Tool, ...] = ()
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[Span] = []
        self._versions: list[int] = []
        self._held = 0
        """Messages whose pieces are among the ids."""

    @property
    def policy_name(self) -> str:
        return self._policy.name

    @property
    def tokens(self) -> int:
        """Includes the messages since the policy's last turn: they count before the next turn is requested."""
        return len(self._ids) + sum(len(ids) for ids, _ in self._pending())

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self.messages, self._tools = list(messages), tuple(tools)
        self._hold()

    async def ask(self, *, seed: int | None, max_new_tokens: int) -> Generation:
        self._hold()
        return await self._policy.generate(tuple(self._ids), seed=seed, max_new_tokens=max_new_tokens, stop=self._stop)

    def take(self, answer: Generation) -> Parsed:
        self._hold()
        self.version = answer.version
        self._versions.append(answer.version)
        turn, index = _turns(self.messages), len(self.messages)
        ended = bool(answer.ids) and answer.ids[-1] in self._stop
        content = answer.ids[:-1] if ended else answer.ids
        self._extend(content, answer.logprobs[: len(content)], Kind.CONTENT, index, turn)
        self._extend(answer.ids[len(content) :], answer.logprobs[len(content) :], Kind.END, index, turn)
        if not ended:  # the turn was cut off: its end was not sampled, and gets no loss
            self._append(self._tokenizer.encode(self._format.stop[0]), "assistant", Kind.GLUE, index, turn)
        text = self._tokenizer.decode(content)
        parsed = _identified(self._format.parsed(text, self._tools), turn)
        whole = f"<think>\n{text}" if self._format.opens_thought else text
        self.messages.append({"role": "assistant", "content": whole} if parsed.errors else _structured(parsed))
        self._held = len(self.messages)
        return parsed

    def answer(self, entry: ToolCall | CallError, text: str) -> None:
        result = {"role": "tool", "content": text} | ({"tool_call_id": entry.id} if entry.id else {})
        self.messages.append(result if isinstance(entry, ToolCall) or entry.source else template.observation(text))

    def record(self) -> Tokens:
        return Tokens(tuple(self._ids), tuple(self._mask), tuple(self._logprobs), tuple(self._spans), tuple(self._versions))

    def _hold(self) -> None:
        """Append the messages since the policy's last turn, and the header of its next turn."""
        for ids, piece in self._pending():
            self._append(ids, piece.role, piece.kind, piece.message, piece.turn)
        self._held = len(self.messages)

    def _pending(self) -> Iterator[tuple[Sequence[int], Piece]]:
        if self._held == len(self.messages):
            return
        last = self._held - 1 if self._held and self.messages[self._held - 1]["role"] == "assistant" else None
        pieces = self._format.render(self.messages, self._tools, generation_prompt=True, opens_thought=self._format.opens_thought)
        for piece in pieces:
            if piece.message >= self._held or (piece.message == last and piece.kind is Kind.GLUE):
                yield self._tokenizer.encode(piece.text), piece

    def _append(self, ids: Sequence[int], role: str, kind: Kind, message: int, turn: int | None) -> None:
        if ids:
            self._spans.append(Span(len(self._ids), len(self._ids) + len(ids), role, kind, turn, message))
            self._ids += ids
            self._mask += [0] * len(ids)
            self._logprobs += [0.0] * len(ids)

    def _extend(self, ids: Sequence[int], logprobs: Sequence[float], kind: Kind, message: int, turn: int) -> None:
        start = len(self._ids)
        self._append(ids, "assistant", kind, message, turn)
        self._mask[start:] = [1] * len(ids)
        self._logprobs[start:] = logprobs


def _single(tokenizer: Tokenizer, text: str) -> int:
    ids = list(tokenizer.encode(text))
    if len(ids) != 1:
        raise ValueError(f"a turn ends with one token, and {text!r} is {len(ids)} in this tokenizer")
    return ids[0]


def _turns(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _last_assistant(messages: Sequence[Message]) -> Message:
    return next((message for message in reversed(messages) if message["role"] == "assistant"), {})


def _with_id(call: Any, turn: int, number: int) -> Any:
    return {**call, "id": call.get("id") or f"call_{turn}_{number}"} if isinstance(call, dict) else call


def _identified(parsed: Parsed, turn: int) -> Parsed:
    """Calls that came without an id get one."""
    calls = tuple(
        call if call.id else ToolCall(call.name, call.arguments, f"call_{turn}_{number}") for number, call in enumerate(parsed.calls)
    )
    return Parsed(parsed.thought, parsed.text, calls, parsed.errors)


def _structured(parsed: Parsed) -> dict[str, Any]:
    """The assistant message of a turn without errors."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
        for call in parsed.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": parsed.text}
    message |= {"reasoning_content": parsed.thought} if parsed.thought else {}
    return message | ({"tool_calls": calls} if calls else {})
