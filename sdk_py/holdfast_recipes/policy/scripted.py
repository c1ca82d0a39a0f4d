"""Policies without a model: turns from a list or from a function of the messages so far.

Owns ``ScriptedChat`` (messages), ``ScriptedTokens`` (ids) and the writing of a turn that calls a tool. Used by tests, by rule-based
teachers, and to compare two environments with the same agent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast_recipes.core.template import call_text

from .base import Finish, Generation, Message, PolicyError, Reply, Tool
from .tokenizer import Tokenizer

Script = Sequence[Message | str] | Callable[[Sequence[Message]], Message | str]
"""Turns in order, or a function from the messages so far to the next turn. A string is the text of a turn."""


def call(tool: str, *, thought: str = "", **arguments: Any) -> dict[str, Any]:
    """An assistant message that calls one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "", "type": "function", "function": function}]}
    return message | ({"reasoning_content": thought} if thought else {})


def written(tool: str, *, thought: str = "", **arguments: Any) -> str:
    """The same turn as a model writes it (Hermes format)."""
    return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + call_text(tool, arguments)


class ScriptedChat:
    """Answers with the turn whose number is that of the assistant messages so far. Raises PolicyError when the script is over."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self._script = script

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int | None, max_new_tokens: int) -> Reply:
        turn = _next(self._script, messages)
        return Reply(turn if not isinstance(turn, str) else {"role": "assistant", "content": turn})


class ScriptedTokens:
    """The same over token ids: texts in order, or a function of the prompt's text and the seed. Log-probabilities are 0.

    ``stop`` is the id that ends each turn. A turn that has no room is cut, as a model's would be. Which turn of a list is next follows
    from how often ``opening``, the header of a policy's turn, stands in the prompt: the same prompt is the same question.
    """

    def __init__(
        self,
        script: Sequence[str] | Callable[[str, int | None], str],
        tokenizer: Tokenizer,
        stop: int,
        *,
        name: str = "scripted",
        opening: str = "<|im_start|>assistant",
        version: int = 0,
    ) -> None:
        self.name = name
        self.version = version
        self._script, self._tokenizer, self._stop, self._opening = script, tokenizer, stop, opening

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        prompt = self._tokenizer.decode(prompt_ids)
        text = self._script(prompt, seed) if callable(self._script) else _turn(self._script, prompt.count(self._opening) - 1)
        ids = [*self._tokenizer.encode(text), self._stop]
        finish = Finish.STOP if len(ids) <= max_new_tokens else Finish.LENGTH
        ids = ids[:max_new_tokens]
        return Generation(tuple(ids), (0.0,) * len(ids), finish, self.version)


def _next(script: Script, messages: Sequence[Message]) -> Message | str:
    if callable(script):
        return script(messages)
    turn: Message | str = _turn(script, sum(message["role"] == "assistant" for message in messages))
    return turn


def _turn(script: Sequence[Any], index: int) -> Any:
    if index >= len(script):
        raise PolicyError(f"the script has {len(script)} turns, and turn {index} was asked for")
    return script[index]
