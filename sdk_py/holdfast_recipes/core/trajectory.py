"""The record of one rollout: messages, turns, tokens, end and reward. All recipes use it.

Owns the fields. Their JSON and column forms are in ``records``, their schema in ``schemas/recipes``. All are frozen; a later stage
(annotation, curation) makes a changed copy with ``dataclasses.replace``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .calls import ToolCall, parse_message
from .scored import Blame, Scored, Status
from .spans import Span

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to a call. ``exit_code`` is None if no process ran; ``cause`` names an end from outside (``timeout``)."""

    text: str
    call_id: str = ""
    exit_code: int | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the policy and the answers to its calls. ``started_s`` counts from the start of the rollout; ``faults`` names
    what was wrong with calls that could not be run (``calls.CallFault``)."""

    index: int
    thought: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    faults: tuple[str, ...] = ()
    observations: tuple[Observation, ...] = ()
    started_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """[T] ids as sampled, with masks and log-probabilities of the same length (0.0 where nothing was sampled).

    ``versions`` gives the policy's weights at each turn: with more than one, the rollout crossed an update.
    """

    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.loss_mask) == len(self.logprobs):
            raise ValueError("ids, loss_mask and logprobs must have one entry per token")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the tests that had to pass: how many of each kind did, and the digest of the log. ``failing`` and ``broken`` name those of
    each kind that did not, as far as the grader recorded names."""

    fail_to_pass: tuple[int, int] = (0, 0)
    pass_to_pass: tuple[int, int] = (0, 0)
    log_sha256: str = ""
    failing: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Harness:
    name: str
    version: str = ""
    config_sha256: str = ""


@dataclass(frozen=True, slots=True)
class PolicyName:
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class SandboxNote:
    """The sandbox of a rollout; ``escalated`` if it got more memory after running out."""

    id: str = ""
    image_digest: str = ""
    escalated: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """The place of a rollout in a tree: its first ``turn`` turns are those of every rollout of that tree, and were played once."""

    tree: str
    turn: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout, whole. ``messages`` are the chat form that the published rows have; ``turns`` have the same content with times and causes.

    ``reward`` None: nothing verified it. ``values`` is there once it was annotated: of the states ``value_of`` the turns ("before" may
    have one more, of the final state). ``rises`` and ``credited`` are there once it was curated: the rise segments, and the turns that
    get loss, where None means all of them. ``prompts`` gives the digest of each prompt that shaped it, by name. ``branch`` is there
    for a rollout that shares its first turns with others.
    """

    trajectory_id: str
    task_id: str
    harness: Harness
    policy: PolicyName
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[Turn, ...] = ()
    seed: int | None = None
    status: Status = Status.COMPLETED
    blame: Blame | None = None
    reason: str = ""
    reward: float | None = None
    verdict: Verdict | None = None
    tokens: Tokens | None = None
    values: tuple[float, ...] | None = None
    value_of: Literal["before", "after"] | None = None
    rises: tuple[tuple[int, int], ...] | None = None
    credited: tuple[int, ...] | None = None
    sandbox: SandboxNote = field(default_factory=SandboxNote)
    repo: str = ""
    source: str = ""
    run: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    branch: Branch | None = None

    @property
    def resolved(self) -> bool:
        return self.reward is not None and self.reward > 0

    def scored(self) -> Scored:
        """The rollout as the group algorithms use it; the length is that of its responses."""
        length = sum(self.tokens.loss_mask) if self.tokens else 0
        return Scored(self.reward, self.status, length, self.blame, self)


def turns_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> tuple[Turn, ...]:
    """The turns that messages of the chat form contain; times and causes are not in them. A result belongs to the
    turn it follows; ``call_id`` names its call."""
    turns: list[Turn] = []
    for message in messages:
        if message["role"] == "assistant":
            parsed = parse_message(message, tools)
            faults = tuple(str(error.fault) for error in parsed.errors)
            turns.append(Turn(len(turns), parsed.thought, parsed.text, parsed.calls, faults))
        elif message["role"] == "tool" and turns:
            content = message.get("content")
            seen = Observation(content if isinstance(content, str) else "", str(message.get("tool_call_id") or ""))
            last = turns[-1]
            turns[-1] = Turn(last.index, last.thought, last.text, last.calls, last.faults, (*last.observations, seen))
    return tuple(turns)
