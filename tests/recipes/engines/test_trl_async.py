"""TRL's real AsyncGRPOTrainer, fed by the rollout manager: three steps on real sandboxes, versions, staleness and failures of the worker.

Its attention is a kernel for GPUs only; here the same packed rows go through plain PyTorch, in the place where the trainer registers the
kernel, and it is not asked for the GPU's name. Its server (vLLM) needs a GPU too: the policy is a copy of the trainer's own model, and
weights are handed over by the trainer's transfer protocol.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.engines.groups import Recipe
from holdfast_recipes.engines.trl import TrainerPolicy
from holdfast_recipes.engines.trl_async import RolloutWorker, WorkerFailedError
from holdfast_recipes.engines.vllm import VllmCompletions
from holdfast_recipes.pipeline.rollouts import Rollout
from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, Policy, PolicyUnavailableError
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from tests.recipes.engines import cases, models, tiny


def plain_attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **tree: Any) -> tuple[Any, None]:
    """What the kernel computes, segment by segment: queries of a segment over the keys of its path, causal at the path's end."""
    query, key, value = (each[0] for each in (query, key, value))
    heads = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(heads, 0), value.repeat_interleave(heads, 0)
    out = torch.zeros_like(query).transpose(0, 1)
    starts_q, starts_k = tree["tree_cu_seqlens_q"].tolist(), tree["tree_cu_seqlens_k"].tolist()
    for segment in range(len(starts_q) - 1):
        queries = slice(starts_q[segment], starts_q[segment + 1])
        path = tree["tree_kv_index"][starts_k[segment] : starts_k[segment + 1]]
        count, seen = queries.stop - queries.start, len(path)
        causal = torch.ones(count, seen, dtype=torch.bool).tril(seen - count)
        made = torch.nn.functional.scaled_dot_product_attention(
            query[:, queries], key[:, path], value[:, path], attn_mask=causal, scale=tree.get("scaling")
        )
        out[queries] = made.transpose(0, 1)
    return out.unsqueeze(0), None


class Transfer:
    """The trainer's weights to the policy's copy of the model."""

    def __init__(self, model: Any) -> None:
        self.model, self.sent, self._lock = model, 0, threading.Lock()

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        with self._lock, torch.no_grad():
            for name, tensor in iterator:
                if name in own:
                    own[name].copy_(tensor)
                    self.sent += 1


class Served:
    """Stands in for the server: the policy's copy of the model."""

    temperature = 1.0

    def __init__(self, model: Any) -> None:
        self.model, self.accelerator = model, self

    def unwrap_model(self, model: Any) -> Any:
        return model


def test_three_steps_on_real_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "tree_attention", plain_attention)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *arguments: None)  # asks CUDA for a name
    served = models.model()
    transfer = Transfer(served)
    worker = RolloutWorker(tiny.on_sandboxes(), TrainerPolicy(Served(served)), in_flight=2, buffered=16, most_staleness=2, seed=3)
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        max_steps=3,
        token_budget=0,
        max_staleness=2,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        heartbeat_stale_after_s=100,
    )
    trainer = AsyncGRPOTrainer(
        str(models.saved(tmp_path / "model")),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "unused"}]]}),
        processing_class=models.tokenizer(),
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    before = [each.detach().clone() for each in trainer.model.parameters()]
    try:
        done = trainer.train()
    finally:
        worker.stop()
    assert done.global_step == 3
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    assert any(entry["grad_norm"] > 0 for entry in logged)
    assert trainer.model_version == 4
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    assert transfer.sent > 0
    # on fresh samples the ratio is that of the same weights: log-probabilities of sampling and training agree
    assert logged[0]["ratio"] == pytest.approx(1.0, abs=1e-3)
    assert all(entry["sample/staleness_max"] <= 2 for entry in logged)
    generated = sum(entry.get("rollout/generated_total") or 0 for entry in logged)
    print(f"\nasynchronous trl: {generated:.0f} rollouts logged, ratios {[round(entry['ratio'], 4) for entry in logged]}")


def recipe(play: Callable[[str, int], Trajectory], size: int = 4) -> Any:
    numbers = itertools.count()

    def rollouts(policy: Policy) -> Rollout[str]:
        async def rollout(prompt: str, ticket: Any) -> Trajectory:
            return play(prompt, next(numbers))

        return rollout

    @asynccontextmanager
    async def opened() -> AsyncIterator[Recipe]:
        yield Recipe(rollouts, lambda: Balance(size, size, size, "0", "1"), prompts=("task-1",))

    return opened()


class Fixed:
    name, version = "fixed", 0

    async def generate(self, prompt_ids: Sequence[int], **given: Any) -> Generation:
        raise AssertionError


def drained(worker: RolloutWorker, count: int) -> list[RolloutSample]:
    return [worker.rollout_buffer.get(timeout=60) for _ in range(count)]


def test_samples_have_exact_ids_masks_and_our_advantages_and_the_lost_one_is_left_out() -> None:
    runs = {0: cases.MULTI, 1: cases.FAILED, 2: cases.TRUNCATED, 3: cases.LOST}
    worker = RolloutWorker(recipe(lambda prompt, number: runs[number % 4]), Fixed(), prompts=["task-1"] * 2)
    worker.update_model_version(3)
    worker.start()
    samples = drained(worker, 6)
    worker.stop()
    assert worker.rollout_buffer.empty()
    first = samples[:3]
    assert {sample.group_id for sample in first} == {1}
    assert {sample.group_id for sample in samples[3:]} == {2}
    multi = next(sample for sample in first if sample.advantage > 0)
    assert multi.input_ids.tolist() == list(cases.IDS)
    assert multi.completion_mask.tolist() == list(cases.MASK)
    assert multi.old_log_probs.tolist() == list(cases.LOGPROBS)
    assert (multi.model_version, multi.metrics["reward"]) == (3, 1.0)
    assert [message["role"] for message in multi.prompt] == ["user"]
    assert [message["role"] for message in multi.completion] == ["assistant", "tool", "assistant"]
    assert sorted(sample.advantage for sample in first) == pytest.approx([-0.57735, -0.57735, 1.1547], abs=1e-5)
    counts = [worker.metrics_queue.get_nowait() for _ in range(worker.metrics_queue.qsize())]
    totals = [sum(each.get(f"rollout/{name}_total", 0.0) for each in counts) for name in ("generated", "infrastructure")]
    assert totals == [8.0, 2.0]


def test_dropped_groups_never_reach_the_trainer_and_the_end_is_reported() -> None:
    worker = RolloutWorker(recipe(lambda prompt, number: cases.MULTI), Fixed(), prompts=["task-1"] * 3)
    worker.start()
    deadline = time.monotonic() + 60
    while not worker._ended and time.monotonic() < deadline:
        worker._thread.join(0.05)  # type: ignore[union-attr]
    with pytest.raises(WorkerFailedError, match="no more prompts"):
        worker.check_health(100)
    assert worker.rollout_buffer.empty()
    worker.stop()


def test_a_full_buffer_holds_the_rollouts_back_and_stop_ends_them() -> None:
    runs = {0: cases.MULTI, 1: cases.FAILED}
    numbers = itertools.count()

    def play(prompt: str, number: int) -> Trajectory:
        next(numbers)
        return runs[number % 2]

    worker = RolloutWorker(recipe(play, size=2), Fixed(), in_flight=2, buffered=2)
    worker.start()
    (first, *_) = drained(worker, 2)
    worker.check_health(100)
    with pytest.raises(WorkerFailedError, match="no group was finished"):
        worker.check_health(-1)
    worker.stop()
    assert next(numbers) < 40
    assert first.group_id == 1


def test_a_recipe_that_cannot_be_opened_is_reported_to_the_trainer() -> None:
    class Broken:
        async def __aenter__(self) -> Recipe:
            raise OSError("no service")

        async def __aexit__(self, *error: object) -> None: ...

    worker = RolloutWorker(Broken(), Fixed())
    worker.start()
    worker._thread.join(60)  # type: ignore[union-attr]
    with pytest.raises(WorkerFailedError, match="no service"):
        worker.check_health(100)
    worker.stop()


async def test_the_policy_behind_vllm_sends_ids_and_reads_ids() -> None:
    requests: list[dict[str, Any]] = []
    answers: list[Any] = [
        {"choices": [{"token_ids": [7, 2], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}]},
        {"choices": [{"token_ids": [7], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"}]},
        {"choices": [{"text": "no ids", "logprobs": None, "finish_reason": "stop"}]},
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(answers[len(requests) - 1]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        async with VllmCompletions(f"http://127.0.0.1:{server.server_port}", "tiny") as policy:
            policy.version = 5
            made = await policy.generate((1, 4), seed=9, max_new_tokens=8, stop={2})
            assert (made.ids, made.logprobs, made.finish, made.version) == ((7, 2), (-0.5, -0.25), Finish.STOP, 5)
            assert (await policy.generate((1,), seed=None, max_new_tokens=1, stop={2})).finish is Finish.LENGTH
            with pytest.raises(PolicyUnavailableError, match="without ids"):
                await policy.generate((1,), seed=1, max_new_tokens=1, stop={2})
            with pytest.raises(ContextLengthError):
                await policy.generate((1,), seed=1, max_new_tokens=0, stop={2})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    first = requests[0]
    assert (first["prompt"], first["max_tokens"], first["seed"], first["stop_token_ids"]) == ([1, 4], 8, 9, [2])
    assert (first["return_token_ids"], first["logprobs"], first["temperature"]) == (True, 0, 1.0)
