"""The SWE recipe for an engine: settings from one JSON file, and everything that they name, opened.

Owns the file's fields and what is made of them: tasks, sandboxes of a Holdfast service in a group of their own, the harness, its limits,
and Algorithm 1. The service's address and key are the SDK's. Engines are given the ``groups.Recipe`` that comes of it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from holdfast import AsyncSandboxClient

from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.conversation import ChatConversation, Conversation, Format, TokenConversation
from holdfast_recipes.harness.limits import LIMITS, Limits, Resources
from holdfast_recipes.harness.rollout import Capacity, Settings
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.playing import managed
from holdfast_recipes.pipeline.rollouts import Rollout, Ticket
from holdfast_recipes.policy.base import ChatPolicy, Policy
from holdfast_recipes.policy.tokenizer import Tokenizer
from holdfast_recipes.swe.archives import Archives
from holdfast_recipes.swe.job import Style, SweJob, maker

from .groups import Recipe


@dataclass(frozen=True, slots=True)
class SweSettings:
    """``tasks`` is a file of tasks, ``archives`` the folder of what they are made from. ``cpu`` and ``memory_gib`` are of a sandbox;
    ``steps``, ``wall_s`` and ``tokens`` bound a rollout (None: the harness's own limit), ``turn_tokens`` a turn. ``size`` N, ``budget``
    N_max, ``stride`` s and the interval of positives are Algorithm 1's; ``stream`` looks for a group after each rollout.
    ``opens_thought``: the model's generation prompt ends within its thought."""

    tasks: Path
    archives: Path | None = None
    harness: Literal["mini", "editor"] = "mini"
    cpu: float = 2.0
    memory_gib: float = 8.0
    concurrency: int = 64
    boots: int = 16
    steps: int | None = None
    wall_s: float | None = None
    tokens: int | None = None
    turn_tokens: int = 16_384
    size: int = 8
    budget: int = 16
    stride: int = 4
    low: str = "0.375"
    high: str = "0.625"
    stream: bool = False
    opens_thought: bool = False
    group_ttl_s: float = 120.0
    run: str = "rl"

    @classmethod
    def read(cls, path: Path) -> SweSettings:
        """Of a JSON file; the paths in it are relative to it. Raises ConfigurationError for a field that is not known."""
        return cls.of(json.loads(path.read_text()), path.parent)

    @classmethod
    def of(cls, values: Mapping[str, Any], folder: Path = Path()) -> SweSettings:
        known = {item.name for item in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ConfigurationError(f"no such settings of the recipe: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        if "tasks" not in values:
            raise ConfigurationError("the recipe's settings name no file of tasks")
        paths = {name: folder / values[name] for name in ("tasks", "archives") if values.get(name) is not None}
        return cls(**{**values, **paths})

    @property
    def limits(self) -> Limits:
        limits = LIMITS[self.harness]
        given = {name: value for name in ("steps", "wall_s", "tokens") if (value := getattr(self, name)) is not None}
        return replace(limits, rollout=replace(limits.rollout, **given))

    def balance(self) -> Balance:
        """For one group. Raises ConfigurationError for settings that cannot work."""
        return Balance(self.size, self.budget, self.stride, self.low, self.high, stream=self.stream)


@contextlib.asynccontextmanager
async def opened(settings: SweSettings, tokenizer: Tokenizer | None = None) -> AsyncIterator[Recipe]:
    """The recipe, while the block is open. Leaving it ends the group, and with it every sandbox that is left. Policies of token ids need
    the model's tokenizer."""
    settings.balance()
    tasks = {task.task_id: task for task in files.tasks(settings.tasks)}
    archives = Archives(settings.archives) if settings.archives else None
    capacity = Capacity(settings.concurrency, settings.boots)
    text = Format(opens_thought=settings.opens_thought)
    async with AsyncSandboxClient() as client, client.group(f"{settings.run}-{secrets.token_hex(4)}", ttl_s=settings.group_ttl_s) as group:
        make = maker(client, group=group, labels={"holdfast-run": settings.run})
        resources, style = Resources(settings.cpu, settings.memory_gib), Style(settings.harness)

        def played(conversation: Callable[[], Conversation[Any]]) -> Rollout[str]:
            own = Settings(conversation, settings.limits, capacity, run=settings.run, turn_tokens=settings.turn_tokens)
            play = managed(lambda task: SweJob(task, make, archives=archives, style=style, resources=resources), own)

            async def rollout(prompt: str, ticket: Ticket) -> Trajectory:
                if prompt not in tasks:
                    raise ConfigurationError(f"no task has the id {prompt!r}")
                return await play(tasks[prompt], ticket)

            return rollout

        def rollouts(policy: Policy) -> Rollout[str]:
            if tokenizer is None:
                raise ConfigurationError("a policy of token ids needs the model's tokenizer")
            return played(lambda: TokenConversation(policy, tokenizer, text))

        def chats(policy: ChatPolicy) -> Rollout[str]:
            return played(lambda: ChatConversation(policy))

        yield Recipe(rollouts, settings.balance, concurrency=settings.concurrency, prompts=tuple(tasks), chats=chats)
