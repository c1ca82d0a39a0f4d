"""From the recorded calls of one rollout to training samples: a prefix tree of token ids (K4, C4.1).

Owns which calls belong to one sequence and which tokens get loss. A call whose prompt begins with everything an earlier call held
(prompt and output) continues it. Any other starts a branch: a sub-agent, a compaction, a re-rendered history that differs by a token.
Each response gets loss in one branch and no other. Ids are never made from text again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Dialect: TypeAlias = Literal["chat", "responses", "messages"]
Finish: TypeAlias = Literal["stop", "tool_calls", "length", "cut"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the policy. ``finish`` "cut": the client disconnected before the end, so it did not use the output afterwards."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish: Finish = "stop"
    dialect: Dialect = "chat"
    version: int = 0

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.output_ids):
            raise ValueError("a call needs a log-probability for each output id, or no log-probabilities")

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.output_ids

    @property
    def loss(self) -> bool:
        """Whether the output is to be learnt from: it was delivered whole, and there is any."""
        return self.finish != "cut" and bool(self.output_ids)


@dataclass(frozen=True, slots=True)
class Sample:
    """One branch as a sequence [T]: ids, which of them get loss, log-probabilities (0.0 where nothing was sampled), and the place of
    each call in the order of calls. ``weight`` is 1/K of the K samples of the rollout, so that it counts once."""

    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    calls: tuple[int, ...]
    versions: tuple[int, ...]
    weight: float


class Branches:
    """The prefix tree of a rollout. Feed it calls in the order they were made."""

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self._calls: list[Call] = []
        self._branches: list[list[int]] = []
        self._branch_of: list[int] = []
        for call in calls:
            self.add(call)

    def add(self, call: Call) -> int:
        """Put a call into its branch and return the branch's number. Only the tip of a branch is continued: a second call that extends
        the same earlier one starts a branch of its own, where the shared beginning has no loss."""
        parent = self._parent(call.prompt_ids)
        place = len(self._calls)
        self._calls.append(call)
        if parent is not None and self._branches[self._branch_of[parent]][-1] == parent:
            branch = self._branch_of[parent]
            self._branches[branch].append(place)
        else:
            branch = len(self._branches)
            self._branches.append([place])
        self._branch_of.append(branch)
        return branch

    def samples(self) -> list[Sample]:
        """A sample for each branch with a token that gets loss, in the order in which the branches began."""
        useful = [branch for branch in self._branches if any(self._calls[place].loss for place in branch)]
        return [self._sample(branch, 1 / len(useful)) for branch in useful]

    def pairs(self, rollout_id: str) -> list[dict[str, Any]]:
        """Each call as a record of ``schemas/recipes/pair.schema.json``, in order."""
        orders: dict[int, int] = {}
        records = []
        for call, branch in zip(self._calls, self._branch_of, strict=True):
            orders[branch] = orders.get(branch, -1) + 1
            fields = {key: value for key, value in asdict(call).items() if value is not None}
            lists = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
            records.append({"format": 1, "rollout_id": rollout_id, "branch": branch, "order": orders[branch], **lists, "loss": call.loss})
        return records

    def _parent(self, prompt: tuple[int, ...]) -> int | None:
        """The call that holds the longest beginning of the prompt; of equals the latest. A cut call is continued by none: its client
        never had the whole output."""
        fitting = [place for place, call in enumerate(self._calls) if call.finish != "cut" and _begins(prompt, call)]
        return max(fitting, key=lambda place: (len(self._calls[place].ids), place), default=None)

    def _sample(self, branch: Sequence[int], weight: float) -> Sample:
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for place in branch:
            call = self._calls[place]
            given = len(call.prompt_ids) - len(ids)
            ids += [*call.prompt_ids[len(ids) :], *call.output_ids]
            mask += [0] * given + [int(call.loss)] * len(call.output_ids)
            logprobs += [0.0] * given + list(call.logprobs or [0.0] * len(call.output_ids))
        versions = tuple(self._calls[place].version for place in branch)
        return Sample(tuple(ids), tuple(mask), tuple(logprobs), tuple(branch), versions, weight)


def call_of(record: Mapping[str, Any]) -> Call:
    """The call of a record that ``Branches.pairs`` wrote."""
    logprobs = tuple(record["logprobs"]) if "logprobs" in record else None
    ids = tuple(record["prompt_ids"]), tuple(record["output_ids"])
    return Call(*ids, logprobs, record["finish"], record["dialect"], record.get("version", 0))


def _begins(prompt: tuple[int, ...], call: Call) -> bool:
    length = len(call.prompt_ids)
    return prompt[:length] == call.prompt_ids and prompt[length : length + len(call.output_ids)] == call.output_ids
