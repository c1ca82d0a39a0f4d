"""TRL's AsyncGRPOTrainer on Holdfast: ``RolloutWorker`` is its ``rollout_worker``, and the rollout manager fills its queue.

Owns the thread in which the manager runs, the records it puts into the trainer's queue with our own advantages, and the version of the
weights. Groups that were dropped and rows without loss never reach the trainer. Read against TRL 1.16, where this trainer is experimental.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from holdfast_recipes.core.groups import GroupRules
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.rollouts import RolloutManager, Step
from holdfast_recipes.pipeline.samples import Sample, samples
from holdfast_recipes.policy.base import Policy

from .groups import Recipe, cycle

_POLL_S = 0.2


class WorkerFailedError(RuntimeError):
    """The rollouts ended, or none has finished for too long."""


class RolloutWorker:
    """``AsyncGRPOTrainer(rollout_worker=RolloutWorker(recipe, policy), …)``.

    ``policy`` queries the server that the trainer puts its weights into (``engines.vllm``). ``prompts`` (task ids; the recipe's own in
    random order by default) are used up one after the other. ``in_flight`` prompts are worked on at a time; nothing is started while
    ``buffered`` samples wait for the trainer. ``most_staleness``: the trainer's ``max_staleness`` should be no higher.
    """

    def __init__(
        self,
        recipe: AbstractAsyncContextManager[Recipe],
        policy: Policy,
        *,
        prompts: Iterable[str] | None = None,
        in_flight: int = 4,
        buffered: int = 256,
        most_staleness: int = 1,
        step_limit_s: float | None = 3600.0,
        seed: int = 0,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=buffered)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._opening, self._policy, self._prompts = recipe, policy, prompts
        self._in_flight, self._most_staleness, self._step_limit_s, self._seed = in_flight, most_staleness, step_limit_s, seed
        self._version = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self._progress_s = time.monotonic()
        self._batching: Batching[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._progress_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="holdfast-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the rollouts and their sandboxes, and wait for that."""
        self._stopping.set()
        loop, work = self._loop, self._work
        if loop is not None and work is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(work.cancel)
            except RuntimeError:
                pass  # it ended by itself in this moment
        if self._thread is not None:
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """The server has these weights now: turns that begin from here on are sampled from them."""
        self._version = model_version
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._follow)

    def check_health(self, stale_after_s: float) -> None:
        """Raises WorkerFailedError once the rollouts have ended, or when no group was finished for so long."""
        if self._failure is not None:
            raise WorkerFailedError(f"the rollouts failed: {self._failure!r}") from self._failure
        if self._ended:
            raise WorkerFailedError("the rollouts ended: there are no more prompts")
        if (waited_s := time.monotonic() - self._progress_s) > stale_after_s:
            raise WorkerFailedError(f"no group was finished for {waited_s:.0f} s")

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001  the trainer sees it in check_health
            self._failure = error
        finally:
            self._ended = True

    async def _produce(self) -> None:
        self._loop, self._work = asyncio.get_running_loop(), asyncio.current_task()  # type: ignore[assignment]
        async with AsyncExitStack() as stack:
            recipe = await stack.enter_async_context(self._opening)
            self._batching = Batching(
                self._source(recipe),
                batch=1,
                balance=recipe.balance,
                oversample=str(self._in_flight),
                rules=recipe.rules if recipe.rules is not None else GroupRules(),
                most_staleness=self._most_staleness,
            )
            self._follow()
            rollout = recipe.rollouts(self._policy)
            manager = RolloutManager(
                self._batching, rollout, concurrency=recipe.concurrency, step_limit_s=self._step_limit_s, seed=self._seed
            )
            await stack.enter_async_context(manager)
            async for step in manager.steps():
                self._progress_s = time.monotonic()
                for sample in samples(step.batch):
                    await self._put(record(sample, step.number))
                self.metrics_queue.put(measured(step))
                self._progress_s = time.monotonic()

    def _source(self, recipe: Recipe) -> Iterator[str]:
        return iter(self._prompts) if self._prompts is not None else cycle(recipe.prompts, self._seed)

    async def _put(self, made: Any) -> None:
        """Waits for room; until then the manager starts no rollout."""
        while not self._stopping.is_set():
            try:
                self.rollout_buffer.put_nowait(made)
            except queue.Full:
                self._progress_s = time.monotonic()  # it is the trainer that is slow
                await asyncio.sleep(_POLL_S)
            else:
                return

    def _follow(self) -> None:
        if hasattr(self._policy, "version"):
            self._policy.version = self._version
        while self._batching is not None and self._batching.version < self._version:
            self._batching.published()


def record(sample: Sample, group: int) -> Any:
    """TRL's ``RolloutSample``: whole sequence, mask and log-probabilities aligned with it, and our advantage. ``group`` numbers it."""
    import numpy
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    run = sample.trajectory
    turns = next((number for number, message in enumerate(run.messages) if message["role"] == "assistant"), len(run.messages))
    return RolloutSample(
        prompt=[dict(message) for message in run.messages[:turns]],
        completion=[dict(message) for message in run.messages[turns:]],
        input_ids=numpy.asarray(sample.ids, dtype=numpy.int64),
        completion_mask=numpy.asarray(sample.mask, dtype=numpy.int64),
        old_log_probs=numpy.asarray(sample.logprobs, dtype=numpy.float32),
        advantage=sample.advantage,
        model_version=sample.version,
        group_id=group,
        metrics={"reward": sample.reward, "rollout/turns": float(len(run.turns))},
        enqueued_at=time.time(),
    )


def measured(step: Step[str]) -> dict[str, Any]:
    """Counts of a step as the trainer's log takes them: names with ``total`` are summed."""
    return {f"rollout/{name}_total": float(count) for name, count in step.batch.counts.items()}
