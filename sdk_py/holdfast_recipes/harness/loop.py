"""The agent loop (ReAct): ask the policy, run its calls, show it what came of them, until it hands its work in or a limit is reached.

Owns the order of these steps, format errors, and how a rollout ends. Knows no domain: the tools, the first messages and the policy are
given. A failed rollout is a value: ``run`` raises for nothing that a policy, a sandbox or a network can do, only for its own
cancellation.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast_recipes.core.calls import CallError, CallFault, Parsed, ToolCall
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Observation, Tokens, Turn
from holdfast_recipes.policy.base import ContextLengthError, Finish, Message, PolicyError, PolicyUnavailableError, Tool

from .conversation import Conversation
from .layers import FaultError, attempt, fault_of
from .limits import Layer, Limits
from .toolset import Result, Toolset

TURN_TOKENS = 16_384
"""New tokens that one turn may have, within what the rollout has left."""
UNANSWERED_S = 150.0
"""How long after its time limit the loop waits for a call's answer: a lost connection is resumed for 120 s by default."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A rollout as far as the loop goes: not graded yet. ``submission`` is what the policy handed in, None where it is read from the
    sandbox or nothing was handed in. ``oom``: the sandbox ran out of memory, and more may help."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]
    status: Status
    blame: Blame | None = None
    reason: str = ""
    submission: str | None = None
    tokens: Tokens | None = None
    seconds: float = 0.0
    cost_usd: float = 0.0
    versions: tuple[int, ...] = ()
    oom: bool = False

    @property
    def exit_status(self) -> str:
        """By the names of mini-swe-agent, for comparisons with its runs."""
        if self.status is Status.COMPLETED:
            return "RepeatedFormatError" if self.reason == "format" else "Submitted"
        return {Status.TRUNCATED: "LimitsExceeded", Status.TIMEOUT: "TimeExceeded"}.get(self.status, self.reason)


@dataclass(frozen=True, slots=True)
class _End:
    status: Status
    blame: Blame | None
    reason: str
    submission: str | None = None
    oom: bool = False


async def run(
    conversation: Conversation[Any],
    toolset: Toolset,
    first: Sequence[Message],
    limits: Limits,
    *,
    seed: int | None = None,
    draw: random.Random | None = None,
    turn_tokens: int = TURN_TOKENS,
) -> Episode:
    """Play one rollout from its first messages to its end. The toolset is not closed here."""
    loop = _Loop(conversation, toolset, limits, seed, draw or random.Random(seed), turn_tokens)  # noqa: S311  pauses, no secret
    conversation.begin(first, toolset.tools)
    end = await loop.play()
    return Episode(
        tuple(conversation.messages),
        tuple(toolset.tools),
        tuple(loop.turns),
        end.status,
        end.blame,
        end.reason,
        end.submission,
        conversation.record(),
        loop.elapsed_s,
        conversation.cost_usd,
        tuple(loop.versions),
        end.oom,
    )


class _Loop:
    def __init__(
        self, conversation: Conversation[Any], toolset: Toolset, limits: Limits, seed: int | None, draw: random.Random, turn_tokens: int
    ) -> None:
        self.turns: list[Turn] = []
        self.versions: list[int] = []
        self._conversation, self._toolset, self._limits = conversation, toolset, limits
        self._seed, self._draw, self._turn_tokens = seed, draw, turn_tokens
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._format_errors = 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    async def play(self) -> _End:
        """Until the end. The wall clock also ends a turn in its middle: what runs in the sandbox then is cancelled."""
        wall_s = self._limits.rollout.wall_s
        try:
            async with asyncio.timeout(wall_s) as wall:
                while True:
                    if (end := self._limit_reached()) is not None:
                        return end
                    if (end := await self._turn()) is not None:
                        return end
        except TimeoutError:
            if wall.expired():
                return _End(Status.TIMEOUT, Blame.POLICY, "wall_clock")
            raise
        except FaultError as fault:
            return _End(Status.ABORTED, fault.blame, fault.reason, oom=fault.oom)
        except Exception as error:  # noqa: BLE001  a rollout that fails is a value, also where a recipe has a defect
            defect = fault_of(Layer.OBSERVATION, error)
            return _End(Status.ABORTED, defect.blame, defect.reason, oom=defect.oom)

    def _limit_reached(self) -> _End | None:
        rollout = self._limits.rollout
        end = rollout.end(
            steps=len(self.turns), elapsed_s=self.elapsed_s, tokens=self._conversation.tokens, format_errors=self._format_errors
        )
        if end is None and rollout.cost_usd is not None and 0 < rollout.cost_usd <= self._conversation.cost_usd:
            end = Status.TRUNCATED, None, "cost"
        return None if end is None else _End(*end)

    async def _turn(self) -> _End | None:
        started_s = self.elapsed_s
        answer = await self._ask()
        if isinstance(answer, _End):
            return answer
        parsed = self._conversation.take(answer)
        self.versions.append(self._conversation.version)
        faults = tuple(str(error.fault) for error in parsed.errors)
        self.turns.append(Turn(len(self.turns), parsed.thought, parsed.text, parsed.calls, faults, (), started_s))
        refused = bool(parsed.errors) and (self._toolset.strict or not parsed.calls)
        self._format_errors = self._format_errors + 1 if refused else 0
        try:
            return await self._run_calls(parsed, refused, cut=getattr(answer, "finish", None) is Finish.LENGTH)
        finally:
            self.turns[-1] = replace(self.turns[-1], seconds=self.elapsed_s - started_s)

    async def _ask(self) -> Any:
        rollout = self._limits.rollout
        room = self._turn_tokens if rollout.tokens is None else min(self._turn_tokens, rollout.tokens - self._conversation.tokens)
        seed = None if self._seed is None else turn_seed(self._seed, len(self.turns))
        try:
            return await attempt(
                Layer.INFERENCE,
                self._limits.layers[Layer.INFERENCE],
                lambda: self._conversation.ask(seed=seed, max_new_tokens=room),
                draw=self._draw,
                again=lambda error: isinstance(error, PolicyUnavailableError),
            )
        except FaultError as fault:
            if isinstance(fault.__cause__, ContextLengthError):
                return _End(Status.TRUNCATED, None, "tokens")
            if isinstance(fault.__cause__, PolicyError):
                fault.reason = "policy_unavailable" if isinstance(fault.__cause__, PolicyUnavailableError) else "policy_refused"
            raise

    async def _run_calls(self, parsed: Parsed, refused: bool, *, cut: bool) -> _End | None:
        """Answer every call and error of a turn, in the order in which they can be: calls first, then errors."""
        for call in parsed.calls:
            if refused:
                self._answer(call, Observation("Not run: another call of this turn is malformed.", call.id))
                continue
            result = await self._run_call(call)
            self._answer(call, result.observation)
            if result.final:
                return _End(Status.COMPLETED, None, "submitted", result.submission)
        for error in parsed.errors:
            self._conversation.answer(error, self._explained(error, cut=cut))
        return None

    async def _run_call(self, call: ToolCall) -> Result:
        timeout_s = self._limits.layers[Layer.OBSERVATION].timeout_s
        try:
            async with asyncio.timeout(timeout_s + UNANSWERED_S) as guard:
                return await self._toolset.run(call, timeout_s=timeout_s)
        except TimeoutError:
            if guard.expired():
                raise FaultError(Layer.OBSERVATION, Blame.INFRASTRUCTURE, "observation_unanswered") from None
            raise
        except Exception as error:
            raise fault_of(Layer.OBSERVATION, error) from error

    def _answer(self, call: ToolCall, seen: Observation) -> None:
        self._conversation.answer(call, seen.text)
        self.turns[-1] = replace(self.turns[-1], observations=(*self.turns[-1].observations, seen))

    def _explained(self, error: CallError, *, cut: bool) -> str:
        names = ", ".join(f"`{tool.get('function', tool).get('name')}`" for tool in self._toolset.tools)
        if cut:
            return f"Error: the turn was cut off at its limit of tokens. Say less, and call one of {names}."
        if error.fault is CallFault.NO_CALL:
            return f"Error: the turn calls no tool. Every turn must call at least one of {names}, with arguments as a JSON object."
        return f"Error: {error.message}. The tools are {names}; arguments are a JSON object."


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn: that of the rollout and the turn's number, in 31 bits."""
    return random.Random(json.dumps([seed, turn])).getrandbits(31)  # noqa: S311  sampling, no secret
