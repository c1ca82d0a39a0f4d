"""A third-party command-line agent as a harness: it runs in the sandbox, and a policy answers its model calls (C4.2).

Owns one such run: its port, session, files and variables, its time, its patch, and the cause of its end. A ``Program``
describes the differences between programs (``programs`` has three). A run that failed is a value; ``run_program`` raises only when
it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from holdfast import AsyncListener, AsyncProcess, AsyncSandbox, CommandResult, HoldfastError, SpawnError

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.policy.base import ContextLengthError, Generation, Policy, PolicyError, PolicyUnavailableError
from holdfast_recipes.proxy.branches import Call, Sample
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import Session, SessionLimits

from .layers import FaultError, attempt, fault_of
from .limits import MINI, Layer, Limits

HOME = "/var/tmp/holdfast-harness"
"""The program's home directory: outside the repository, and not that of the image's user, whose settings are the task's. Codex puts no
helper programs under /tmp."""
_KEPT_BYTES = 64 * 1024
_GRACE_S = 10.0
_SETTLE_S = 0.5
"""How long connections may take to end after the program: whether it read an answer is seen from their end."""


@dataclass(frozen=True, slots=True)
class Program:
    """How to start an agent in a sandbox. ``argv``, ``env`` and ``files`` (paths under its home) may hold ``${url}`` (of the proxy,
    without ``/v1``), ``${key}``, ``${model}``, ``${prompt}``, ``${home}`` and ``${workdir}``. Its images bring the program itself."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, in the terms of a trajectory; ``oom``: the sandbox ran out of memory, and more would help."""

    status: Status
    blame: Blame | None = None
    reason: str = ""
    oom: bool = False


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """``output`` is the end of what it printed; ``patch`` what it changed in the work directory, None where that is unknown. Samples and
    pairs are there whatever the end: the trainer decides by ``end``."""

    end: End
    exit_code: int | None
    output: str
    patch: str | None
    calls: tuple[Call, ...]
    samples: tuple[Sample, ...]
    pairs: tuple[Mapping[str, Any], ...]
    seconds: float
    messages: tuple[Mapping[str, Any], ...] = ()
    """Of the main line of its work, in the chat form; ``tools`` as it declared them."""
    tools: tuple[Mapping[str, Any], ...] = ()


class PatientPolicy:
    """A policy with the inference layer's limits: the same ids and seed are asked again while that can help."""

    def __init__(self, policy: Policy, limits: Limits, seed: int | None = None) -> None:
        self.name = policy.name
        self._policy, self._limit, self._draw = policy, limits.layers[Layer.INFERENCE], random.Random(seed)  # noqa: S311  jitter

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        """As the policy's own. Raises PolicyError, PolicyUnavailableError where time or tries were used up."""
        try:
            return await attempt(
                Layer.INFERENCE,
                self._limit,
                lambda: self._policy.generate(prompt_ids, seed=seed, max_new_tokens=max_new_tokens, stop=stop),
                draw=self._draw,
                again=lambda error: isinstance(error, PolicyUnavailableError),
            )
        except FaultError as fault:
            if isinstance(fault.__cause__, PolicyError):
                raise fault.__cause__ from None
            raise PolicyUnavailableError(str(fault)) from fault


async def run_program(
    program: Program,
    sandbox: AsyncSandbox,
    proxy: Proxy,
    policy: Policy,
    prompt: str,
    *,
    limits: Limits = MINI,
    workdir: str = "/testbed",
    user: str | int | None = None,
    rollout_id: str = "",
    seed: int | None = None,
    opens_thought: bool = False,
) -> ProgramRun:
    """One run of ``program`` on ``prompt``. The sandbox needs no network, and is not changed afterwards, for grading; ``user`` runs the
    program.
    """

    def player(session: Session) -> _Run:
        return _Run(program, sandbox, session, limits, workdir, user, prompt)

    return await recorded(player, proxy, policy, limits=limits, rollout_id=rollout_id, seed=seed, opens_thought=opens_thought)


class Player(Protocol):
    """A harness that runs with one session. ``exit_code``, ``output`` and ``patch`` are set once it has run."""

    exit_code: int | None
    output: str
    patch: str | None

    async def play(self, proxy: Proxy) -> End: ...


async def recorded(
    player: Callable[[Session], Player],
    proxy: Proxy,
    policy: Policy,
    *,
    limits: Limits,
    rollout_id: str = "",
    seed: int | None = None,
    opens_thought: bool = False,
) -> ProgramRun:
    """Run a player with its own session, and return its run with the calls that the session recorded."""
    bounds = SessionLimits(limits.rollout.steps, limits.rollout.tokens)
    patient = PatientPolicy(policy, limits, seed)
    session = proxy.open(patient, rollout_id=rollout_id, seed=seed, limits=bounds, opens_thought=opens_thought)
    run = player(session)
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        end = await run.play(proxy)
        await proxy.settle(session)
    finally:
        proxy.close_session(session)
    record = tuple(session.calls), tuple(session.samples()), tuple(session.pairs())
    messages, tools = session.history()
    return ProgramRun(end, run.exit_code, run.output, run.patch, *record, clock() - started, tuple(messages), tuple(tools))


class _Run:
    """The parts of one run that its end is judged by."""

    def __init__(
        self,
        program: Program,
        sandbox: AsyncSandbox,
        session: Session,
        limits: Limits,
        workdir: str,
        user: str | int | None,
        prompt: str,
    ) -> None:
        self.result: CommandResult | None = None
        self.patch: str | None = None
        self._program, self._sandbox, self._session, self._limits = program, sandbox, session, limits
        self._workdir, self._user, self._prompt = workdir, user, prompt
        self.exit_code: int | None = None
        self.output = ""
        self._unreachable = False

    async def play(self, proxy: Proxy) -> End:
        try:
            base = await self._git("rev-parse", "HEAD")
            async with self._sandbox.listen(forward_to=proxy.address) as listener:
                url = f"http://{listener.address}"
                values = {"url": url, "key": self._session.key, "model": proxy.model, "prompt": self._prompt}
                process = await self._start({**values, "home": HOME, "workdir": self._workdir})
                await self._finish(process, listener)
                await listener.close(_SETTLE_S)
            self.patch = await self._diff(base)
        except SpawnError:
            return End(Status.ABORTED, Blame.ENVIRONMENT, "program_not_found")
        except HoldfastError as error:
            return _fault(error)
        return judged(self.result, self._session, unreachable=self._unreachable)

    async def _start(self, values: Mapping[str, str]) -> AsyncProcess:
        def filled(text: str) -> str:
            return string.Template(text).safe_substitute(values)

        await self._sandbox.files.mkdir(HOME, mode=0o777)
        for path, text in self._program.files.items():
            place = f"{HOME}/{path}"
            await self._sandbox.files.mkdir(place.rpartition("/")[0], user=self._user)
            await self._sandbox.files.write(place, filled(text), user=self._user)
        return await self._sandbox.start(
            [filled(word) for word in self._program.argv],
            cwd=self._workdir,
            env={"HOME": HOME, **{name: filled(text) for name, text in self._program.env.items()}},
            user=self._user,
            timeout=float("inf") if self._limits.rollout.wall_s is None else self._limits.rollout.wall_s,
            stdin=False,
            outlive="kill",
            stderr="stdout",
            max_output_bytes=_KEPT_BYTES,
            keep="tail",
        )

    async def _finish(self, process: AsyncProcess, listener: AsyncListener) -> None:
        """Wait for the program; one that can get no further answer is given a moment to end by itself, and then killed."""
        waits = [asyncio.ensure_future(work) for work in (process.wait(), listener.wait(), self._session.out_of_steps.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._unreachable = waits[1].done() and not waits[0].done()
            if not waits[0].done():
                await asyncio.wait(waits[:1], timeout=_GRACE_S)
            if not waits[0].done():
                await process.kill()
            self.result = await process.wait()
            self.exit_code, self.output = self.result.exit_code, self.result.output
        except asyncio.CancelledError:
            await process.close()
            raise
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)  # with the session both of the first end: ``process`` has the reason

    # The work ---------------------------------------------------------------------------------------------------

    async def _diff(self, base: str | None) -> str | None:
        """Everything that differs from the commit that the run began with, new files and commits included; the index is not changed."""
        if base is None:
            return None
        index = {"GIT_INDEX_FILE": f"{HOME}/index"}
        added = await self._git("add", "--all", env=index)
        patch = await self._git("diff", "--binary", "--cached", "--no-ext-diff", "--no-textconv", base, env=index)
        with contextlib.suppress(HoldfastError):
            await self._sandbox.files.remove(f"{HOME}/index", missing_ok=True)
        return None if added is None or patch is None else (patch + "\n" if patch else "")

    async def _git(self, *words: str, env: Mapping[str, str] | None = None) -> str | None:
        """The output of git without the last newline; None if it fails."""
        command = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=false", *words]
        limit_s = self._limits.layers[Layer.OBSERVATION].timeout_s
        try:
            result = await self._sandbox.exec(
                command, cwd=self._workdir, env=env, user=self._user, timeout=limit_s, max_output_bytes=64 * 1024 * 1024
            )
        except SpawnError:
            return None
        return result.stdout_bytes.decode("utf-8", "surrogateescape").removesuffix("\n") if result.ok and not result.truncated else None


def judged(result: CommandResult | None, session: Session, *, unreachable: bool = False) -> End:
    """The cause of a program's end, from its result and its session.

    The policy answers for its own end and for the clock; a policy that did not answer is infrastructure; a program that never asked
    is a fault of the environment; what was killed inside the sandbox is the workload's.
    """
    if result is not None and result.cause is not None and result.cause.is_infrastructure:
        return End(Status.ABORTED, Blame.INFRASTRUCTURE, result.cause.reason)
    if result is None:
        return End(Status.ABORTED, Blame.INFRASTRUCTURE, "no_result")
    if session.out_of_steps.is_set():
        return End(Status.TRUNCATED, None, "steps")
    if isinstance(session.failure, ContextLengthError) and session.unanswered:
        return End(Status.TRUNCATED, None, "tokens")
    if session.unanswered:
        unavailable = isinstance(session.failure, PolicyUnavailableError)
        return End(Status.ABORTED, Blame.INFRASTRUCTURE, "policy_unavailable" if unavailable else "policy_refused")
    if result.timed_out:
        return End(Status.TIMEOUT, Blame.POLICY, "wall_clock")
    if unreachable:  # the sandbox ended its listener, which only its workload can have caused
        return End(Status.ABORTED, Blame.WORKLOAD, "listener_ended")
    if result.exit_code and session.refused == "tokens":
        return End(Status.TRUNCATED, None, "tokens")
    if not session.calls:
        return End(Status.ABORTED, Blame.ENVIRONMENT, "program_not_found" if result.exit_code in (126, 127) else "no_call")
    if result.cause is not None:
        return End(Status.ABORTED, Blame.WORKLOAD, result.cause.reason, oom=result.cause.reason == "oom")
    if result.exit_code:
        return End(Status.COMPLETED, Blame.WORKLOAD, f"exit_{result.exit_code}")
    return End(Status.COMPLETED)


def _fault(error: Exception) -> End:
    fault = fault_of(Layer.OBSERVATION, error)
    return End(Status.ABORTED, fault.blame, fault.reason, oom=fault.oom)


def at(program: Program, path: str) -> Program:
    """The same program, found at ``path`` in the sandbox."""
    return replace(program, argv=(path, *program.argv[1:]))
