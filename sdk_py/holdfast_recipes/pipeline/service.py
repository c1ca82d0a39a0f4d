"""Options and setup of the commands that run sandboxes: the policy, the harness, limits, and the service with a group for the run.

Owns the arguments and how they become ``harness.rollout.Settings`` and jobs, for the command line and for training. The service's address
and key are the SDK's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import AsyncGroup, AsyncSandbox, AsyncSandboxClient, HoldfastError

from holdfast_recipes.harness.agent import Agent, Record
from holdfast_recipes.harness.conversation import ChatConversation, Conversation
from holdfast_recipes.harness.limits import LIMITS, Limits, Resources
from holdfast_recipes.harness.mini_swe_agent import VERSION as MINI_VERSION
from holdfast_recipes.harness.mini_swe_agent import run_mini
from holdfast_recipes.harness.program import Program, ProgramRun, at, run_program
from holdfast_recipes.harness.programs import PROGRAMS
from holdfast_recipes.harness.rollout import Capacity, Settings
from holdfast_recipes.policy.base import Policy
from holdfast_recipes.policy.endpoint import Sampling
from holdfast_recipes.policy.openai_chat import OpenAIChat, Prices
from holdfast_recipes.policy.sglang import SGLang
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.swe.archives import Archives
from holdfast_recipes.swe.job import Style, SweJob, maker
from holdfast_recipes.swe.sources import SweTask

from .baselines import BASELINES
from .curate import tokenizer
from .errors import SettingError
from .files import Journal
from .images import Pull

GROUP_TTL_S = 120.0
OWN = ("mini", "editor")
MINI_SWE_AGENT = "mini-swe-agent"
HARNESSES = (*OWN, *PROGRAMS, MINI_SWE_AGENT)
PAIRS = "pairs.jsonl"


def add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="URL", help="base address of an OpenAI-compatible endpoint (http://127.0.0.1:8000/v1)")
    parser.add_argument("--model", help="a model name that the endpoint serves")
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="the variable that holds its key (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="(%(default)s)")
    parser.add_argument("--prices", type=float, nargs=2, default=(0.0, 0.0), metavar="USD", help="per million tokens of prompt and answer")


def add_sandboxes(parser: argparse.ArgumentParser, option: str = "--harness", more: Sequence[str] = ()) -> None:
    """``option`` names the harness; ``more`` are further values of it, which the caller resolves."""
    parser.add_argument(
        option,
        dest="harness",
        choices=(*HARNESSES, *more),
        default="mini",
        help="mini: a subshell per call; editor: a living shell with editor; or a program, which needs --tokenizer (%(default)s)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="of a program's model: its tokenizer.json, or bytes; --policy is then the base address of an SGLang server",
    )
    parser.add_argument(
        "--program",
        metavar="PATH",
        help="where the program is in the image (found by its name); of openhands the Python in the image, "
        f"of {MINI_SWE_AGENT} that on this machine, that has the package",
    )
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="sandboxes at the same time (%(default)s)")
    parser.add_argument("--cpu", type=float, default=2, help="of a sandbox (%(default)s)")
    parser.add_argument("--memory", type=float, default=8, metavar="GIB", help="of a sandbox (%(default)s)")
    parser.add_argument("--steps", type=int, metavar="N", help="turns of a rollout (250)")
    parser.add_argument("--wall", type=float, metavar="SECONDS", help="time of a rollout (1800)")
    parser.add_argument("--tokens", type=int, metavar="N", help="context of a rollout (65536)")
    parser.add_argument(
        "--lease", type=float, default=GROUP_TTL_S, metavar="SECONDS", help="sandboxes end so long after this process (%(default)s)"
    )
    parser.add_argument(
        "--record", action="store_true", help="let the service record the sandboxes: holdfast recordings, label holdfast-run"
    )
    parser.add_argument("--archives", type=Path, metavar="FOLDER", help="of tasks that are made from archives (archives beside the tasks)")


def check_policy(arguments: argparse.Namespace, model: str) -> None:
    """Raises SettingError for what names no model behind an endpoint."""
    if not str(arguments.policy).startswith(("http://", "https://")):
        raise SettingError(f"--policy must be the address of an endpoint, http://… or https://…, not {arguments.policy!r}")
    if not model:
        raise SettingError("--model is missing", hint="name a model that the endpoint serves")


def chat_policy(arguments: argparse.Namespace, model: str) -> OpenAIChat:
    """A policy behind the endpoint."""
    check_policy(arguments, model)
    return OpenAIChat(
        arguments.policy,
        model,
        os.environ.get(arguments.key_variable, ""),
        sampling=Sampling(arguments.temperature),
        prices=Prices(*arguments.prices),
    )


def limits_of(arguments: argparse.Namespace) -> Limits:
    limits = LIMITS.get(arguments.harness, LIMITS["mini"])
    given = {"steps": arguments.steps, "wall_s": arguments.wall, "tokens": arguments.tokens}
    if any(value is not None and value <= 0 for value in given.values()):
        raise SettingError("--steps, --wall and --tokens must be above 0")
    rollout = replace(limits.rollout, **{name: value for name, value in given.items() if value is not None})
    return replace(limits, rollout=rollout)


@dataclass(frozen=True, slots=True)
class Service:
    """An open service with a group for the run. ``talk`` makes a task's conversation; ``pull`` fetches images it does not have."""

    jobs: Callable[[SweTask], SweJob]
    settings: Settings
    talk: Callable[[SweTask], Conversation[Any]]
    pull: Pull
    client: AsyncSandboxClient
    group: AsyncGroup


@contextlib.asynccontextmanager
async def service(arguments: argparse.Namespace, run: str, tasks_file: Path, pairs: Path | None = None) -> AsyncIterator[Service]:
    """Everything that rollouts need. Leaving it ends the group, and with it every sandbox that is left. Without ``arguments.policy`` the
    caller gives the conversations (``settings.conversation``). ``pairs`` gets the calls that a program makes."""
    if arguments.concurrency < 1 or arguments.cpu <= 0 or arguments.memory <= 0:
        raise SettingError("--concurrency is at least 1, --cpu and --memory above 0")
    limits = limits_of(arguments)
    folder = arguments.archives or (tasks_file if tasks_file.is_dir() else tasks_file.parent) / "archives"
    archives = Archives(folder) if arguments.archives or folder.is_dir() else None
    resources = Resources(arguments.cpu, arguments.memory)
    own = arguments.harness in OWN
    style = Style(arguments.harness if own else "program")
    async with contextlib.AsyncExitStack() as stack:
        agent = None if own else await _agent(arguments, stack, pairs)
        talk = await _talk(arguments, stack) if own else lambda task: _no_task()
        client = await stack.enter_async_context(AsyncSandboxClient())
        group = await stack.enter_async_context(client.group(f"{run}-{secrets.token_hex(4)}", ttl_s=arguments.lease))
        make = maker(client, group=group, labels={"holdfast-run": run}, record=arguments.record)

        def job(task: SweTask) -> SweJob:
            return SweJob(task, make, archives=archives, style=style, resources=resources)

        settings = Settings(_no_task, limits, Capacity(arguments.concurrency), run=run, agent=agent)
        yield Service(job, settings, talk, _puller(client), client, group)


async def _talk(arguments: argparse.Namespace, stack: contextlib.AsyncExitStack) -> Callable[[SweTask], Conversation[Any]]:
    if arguments.policy is None:
        return lambda task: _no_task()
    if arguments.policy in BASELINES:
        made = BASELINES[arguments.policy]
        return lambda task: ChatConversation(made(task, arguments.harness))
    policy = await stack.enter_async_context(chat_policy(arguments, arguments.model or ""))
    return lambda task: ChatConversation(policy)


async def _agent(arguments: argparse.Namespace, stack: contextlib.AsyncExitStack, pairs: Path | None) -> Agent:
    """The program of ``--harness``, with a proxy for its model; ``pairs`` gets its calls."""
    if not arguments.tokenizer:
        raise SettingError(f"--harness {arguments.harness} needs --tokenizer", hint="the model's tokenizer.json")
    if not str(arguments.policy).startswith(("http://", "https://")):
        raise SettingError(f"--harness {arguments.harness} needs --policy", hint="the base address of an SGLang server")
    record: Record = _ignored
    if pairs is not None:
        journal = stack.enter_context(Journal(pairs))

        def kept(calls: Sequence[Mapping[str, Any]]) -> None:
            for call in calls:
                journal.append(call)

        record = kept
    name = arguments.model or "policy"
    policy = await stack.enter_async_context(SGLang(arguments.policy, name, sampling=Sampling(arguments.temperature)))
    proxy = await stack.enter_async_context(Proxy(tokenizer(arguments.tokenizer)))
    if arguments.harness == MINI_SWE_AGENT:
        if not arguments.program:
            raise SettingError("--harness mini-swe-agent needs --program", hint="the Python of an environment with mini-swe-agent")
        return Agent(MINI_SWE_AGENT, MINI_VERSION, name, partial(_mini, arguments.program, proxy, policy), record)
    program = PROGRAMS[arguments.harness]
    found = at(program, arguments.program) if arguments.program else program
    return agent_of(found, proxy, policy, record)


def agent_of(program: Program, proxy: Proxy, policy: Policy, record: Record) -> Agent:
    """A program as an agent: the prompt goes to it, what it changes in the repository is its work."""

    async def run(sandbox: AsyncSandbox, prompt: str, **more: Any) -> ProgramRun:
        return await run_program(program, sandbox, proxy, policy, prompt, **more)

    return Agent(program.name, program.version, policy.name, run, record)


async def _mini(python: str, proxy: Proxy, policy: Policy, sandbox: AsyncSandbox, prompt: str, **more: Any) -> ProgramRun:
    return await run_mini(python, sandbox, proxy, policy, prompt, **more)


def _ignored(calls: Sequence[Mapping[str, Any]]) -> None:
    """Pairs that no file was given for."""


def _no_task() -> Conversation[Any]:
    raise AssertionError("each task has a conversation of its own")


def _puller(client: AsyncSandboxClient) -> Pull:
    known: set[str] = set()
    asked = asyncio.Lock()

    async def pull(image: str) -> bool:
        async with asked:
            if not known:
                known.update(each.name for each in await client.images.list())
                known.add("")  # asked once
        if image in known:
            return True
        try:
            await client.images.pull(image)
        except HoldfastError:
            return False
        return True

    return pull


def run_until_ended(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end; SIGTERM ends it as Ctrl-C does, with what was begun cleaned up."""

    async def all_of_it() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(all_of_it())
    except asyncio.CancelledError:
        return 143
