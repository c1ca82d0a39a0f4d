"""The calls of one rollout: from a request to the policy's answer, each kept as token ids from its prompt on.

Owns a session's key, its order of calls, its limits, and the outcome of a call: answered, cut, or without an answer. A call is
recorded as soon as its output exists or its client has disconnected; ``branches`` makes samples of the calls. HTTP belongs to ``server``.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast_recipes.core.calls import parse_text
from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, Policy
from holdfast_recipes.policy.tokenizer import Tokenizer

from .answers import Answer, whole
from .branches import Branches, Call, Dialect, Sample
from .dialects import Request, read_request
from .prompts import Prompts


def call_seed(seed: int, number: int) -> int:
    """The seed of one call: that of the rollout and the call's number, in 31 bits, so that neighbouring rollouts share none."""
    return random.Random(f"{seed} {number}").getrandbits(31)  # noqa: S311  sampling, no secret


class SessionOverError(Exception):
    """The rollout takes no more calls: a limit was reached (``reason``: ``steps`` or ``tokens``), or it ended (``closed``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this rollout takes no more calls: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """``calls`` of the policy in all; ``context`` tokens of one prompt with its answer; ``new_tokens`` of one answer, also where the
    client requests more. None: no limit."""

    calls: int | None = 250
    context: int | None = 64 * 1024
    new_tokens: int = 8192


@dataclass(slots=True, eq=False)
class Pending:
    """A call that was asked and not yet recorded or given up."""

    number: int
    dialect: Dialect
    request: Request
    prompt_ids: tuple[int, ...]
    generation: Generation | None = None
    answer: Answer | None = None
    finish: str = ""
    work: asyncio.Future[Generation] | None = field(default=None, repr=False)


class Session:
    """One rollout's calls. Made by ``Proxy.open``; ``key`` is what its harness must send with every request."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: Tokenizer,
        *,
        rollout_id: str = "",
        seed: int | None = None,
        limits: SessionLimits | None = None,
        opens_thought: bool = False,
        restore_thoughts: bool = True,
    ) -> None:
        self.key = f"hfp-{secrets.token_hex(20)}"
        self.rollout_id = rollout_id or self.key[-12:]
        self.limits = limits or SessionLimits()
        self.failure: Exception | None = None
        """Why the policy gave no answer to the latest call that got none."""
        self.refused = ""
        """The limit at which the latest refused call was: ``steps`` or ``tokens``."""
        self.out_of_steps = asyncio.Event()
        """A call came after the last that is allowed: whatever the harness does now, it gets no answer."""
        self._policy, self._seed = policy, seed
        self._prompts = Prompts(tokenizer, opens_thought=opens_thought, restore_thoughts=restore_thoughts)
        self._tokenizer = tokenizer
        self._tag = secrets.token_hex(3)
        self._asked: list[Pending] = []
        self._closed = False

    # Asking -----------------------------------------------------------------------------------------------------

    def ask(self, dialect: Dialect, body: Any) -> Pending:
        """Take a call in. Raises DialectError, ContextLengthError or SessionOverError; then nothing is recorded."""
        if self._closed:
            raise SessionOverError("closed")
        request = read_request(dialect, body)
        prompt_ids = self._prompts.ids(request.messages, request.tools)
        if self.limits.context is not None and len(prompt_ids) >= self.limits.context:
            self.refused = "tokens"  # a harness may compact its history and go on
            most = self.limits.context - 1
            # claude-code and litellm recognise this error by these words
            raise ContextLengthError(
                f"prompt is too long: {len(prompt_ids)} tokens > {most} maximum (this model's maximum context length is {most} tokens)"
            )
        if self.limits.calls is not None and sum(each.finish != "none" for each in self._asked) >= self.limits.calls:
            self.refused = "steps"
            self.out_of_steps.set()
            raise SessionOverError("steps")
        pending = Pending(len(self._asked), dialect, request, prompt_ids)
        self._asked.append(pending)
        return pending

    def count(self, dialect: Dialect, body: Any) -> int:
        """The number of tokens in the prompt of a request. Raises DialectError."""
        request = read_request(dialect, body)
        return len(self._prompts.ids(request.messages, request.tools))

    async def generate(self, pending: Pending, model: str, created_s: int) -> Answer:
        """The policy's answer. Raises what the policy raises; a call without an answer is no part of the record."""
        room = self.limits.new_tokens if self.limits.context is None else self.limits.context - len(pending.prompt_ids)
        most = min(room, self.limits.new_tokens, pending.request.max_new_tokens or room)
        seed = None if self._seed is None else call_seed(self._seed, pending.number)
        stop = set(self._prompts.end_ids) if len(self._prompts.end_ids) == 1 else set()
        pending.work = asyncio.ensure_future(self._policy.generate(pending.prompt_ids, seed=seed, max_new_tokens=most, stop=stop))
        try:
            generation = await pending.work
        except asyncio.CancelledError:
            self.cut(pending)
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise SessionOverError("closed") from None
            raise
        except Exception as error:
            pending.finish, self.failure = "none", error
            raise
        pending.generation, stopped_by = self._stopped(generation, pending.request.stop)
        pending.answer = self._answer(pending, pending.generation, stopped_by, model, created_s)
        # a client that repeats its request at once must find this; ``cut`` reverts it
        self._deliver(pending)
        return pending.answer

    def cut(self, pending: Pending) -> None:
        """The client disconnected before it had the whole answer. If it continued the answer later, it had it."""
        if pending.work is not None and not pending.work.done():
            pending.work.cancel()
        call = self._call(pending)
        continued = call is not None and any(each.prompt_ids[: len(call.ids)] == call.ids for each in self._asked[pending.number + 1 :])
        if not continued:
            pending.finish = "cut"

    def close(self) -> None:
        """Take no more calls; what is being generated is cut."""
        self._closed = True
        for pending in self._asked:
            if not pending.finish:
                self.cut(pending)

    # The record -------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """The calls on record, in the order in which they were asked."""
        made = (self._call(pending) for pending in self._asked)
        return [call for call in made if call is not None]

    @property
    def unanswered(self) -> bool:
        """Whether the latest call got no answer from the policy; ``failure`` has the reason."""
        return bool(self._asked) and self._asked[-1].finish == "none"

    def samples(self) -> list[Sample]:
        """Each response with loss in exactly one of them."""
        return Branches(self.calls).samples()

    def pairs(self) -> list[Mapping[str, Any]]:
        """The calls as records of ``schemas/recipes/pair.schema.json``."""
        return list(Branches(self.calls).pairs(self.rollout_id))

    def history(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Messages and tools of the first branch as its harness sent them last, with the answer to that: the main line of its work.
        Empty where no call was answered."""
        asked = [pending for pending in self._asked if self._call(pending) is not None and pending.answer is not None]
        branches = Branches()
        main = [pending for pending in asked if branches.add(self._call(pending) or Call((), ())) == 0]
        if not main or main[-1].answer is None:
            return [], []
        request = main[-1].request
        return [*request.messages, self._sent_back(main[-1].answer)], list(request.tools)

    def _call(self, pending: Pending) -> Call | None:
        if pending.finish in ("", "none"):
            return None
        made = pending.generation or Generation((), ())
        finish: Any = pending.finish
        return Call(pending.prompt_ids, made.ids, made.logprobs, finish, pending.dialect, made.version)

    def _deliver(self, pending: Pending) -> None:
        assert pending.answer is not None
        assert pending.generation is not None
        pending.finish = pending.answer.finish
        self._prompts.remember(self._sent_back(pending.answer), pending.prompt_ids, pending.generation.ids)

    # Text -------------------------------------------------------------------------------------------------------

    def _answer(self, pending: Pending, generation: Generation, stopped_by: str, model: str, created_s: int) -> Answer:
        text = self._tokenizer.decode(self._prompts.without_end(generation.ids))
        text = text[: text.index(stopped_by)] if stopped_by else text
        parsed = parse_text(text, thinking=self._prompts.opens_thought)
        name = f"{self._tag}{pending.number:04d}"
        truncated = generation.finish is Finish.LENGTH
        sizes = len(pending.prompt_ids), len(generation.ids)
        return Answer(name, model or self._policy.name, parsed, *sizes, created_s, truncated, stopped_by, pending.request.freeform)

    def _stopped(self, generation: Generation, stop: Sequence[str]) -> tuple[Generation, str]:
        """The generation up to the first of the client's stop texts, which ends with the token that completes it."""
        text = self._tokenizer.decode(self._prompts.without_end(generation.ids))
        found = min(((place, word) for word in stop if word and (place := text.find(word)) >= 0), default=None)
        if found is None:
            return generation, ""
        low, high = 1, len(generation.ids)
        while low < high:  # the shortest beginning that contains it
            middle = (low + high) // 2
            low, high = (low, middle) if found[1] in self._tokenizer.decode(generation.ids[:middle]) else (middle + 1, high)
        short = replace(generation, ids=generation.ids[:low], logprobs=generation.logprobs[:low], finish=Finish.STOP)
        return short, found[1]

    @staticmethod
    def _sent_back(answer: Answer) -> Mapping[str, Any]:
        """The assistant message of a later request that holds this answer."""
        message = dict(whole("chat", answer)["choices"][0]["message"])
        return read_request("chat", {"messages": [message]}).messages[0]
