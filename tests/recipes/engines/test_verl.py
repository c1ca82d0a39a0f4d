"""verl's real agent loop, worker and advantage code on a CPU: its base classes, its registry, its records and its key scheme.

What needs GPUs or a cluster is replaced: the inference server by scripted tokens, and TransferQueue's store by a dictionary.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transfer_queue
import verl
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.scored import Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.engines import verl as adapter
from holdfast_recipes.engines.groups import Recipe
from holdfast_recipes.engines.rows import row_of
from holdfast_recipes.engines.shared import close_shared
from holdfast_recipes.pipeline.rollouts import Rollout
from holdfast_recipes.policy.base import ContextLengthError, Finish, Policy, PolicyUnavailableError
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, DictConfigWrap, _agent_loop_registry
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from tests.recipes.engines import cases, models, tiny
from tests.recipes.engines.launching import LAUNCH, launched

HERE = "tests.recipes.engines.test_verl"
CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "rollout": {
                "prompt_length": 16,
                "response_length": 32,
                "n": 4,
                "val_kwargs": {"n": 1},
                "multi_turn": {"tool_config_path": None},
            },
            "model": {"path": "none"},
        },
        "data": {"apply_chat_template_kwargs": {}},
    }
)
MIXED = {0: cases.MULTI, 1: cases.FAILED, 2: cases.TRUNCATED, 3: cases.LOST}


class Server:
    """Answers with the next list of tokens and records the requests."""

    def __init__(self, *turns: list[int], stop_reason: str = "completed", logprobs: bool = True) -> None:
        self.turns = itertools.cycle(turns or ([tiny.IDS["a"], tiny.IDS[tiny.END]],))
        self.requests: list[tuple[str, list[int], dict[str, Any]]] = []
        self.stop_reason, self.logprobs = stop_reason, logprobs

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **given: Any) -> TokenOutput:
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        ids = next(self.turns)
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if self.logprobs else None,
            stop_reason=self.stop_reason,
            extra_fields={"global_steps": 5, "min_global_steps": 5, "max_global_steps": 5},
        )


def loop(server: Any, recipe: str) -> adapter.HoldfastAgentLoop:
    return adapter.HoldfastAgentLoop(
        trainer_config=DictConfigWrap(CONFIG),
        server_manager=server,
        tokenizer=models.tokenizer(),
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(CONFIG.data),
        recipe=recipe,
    )


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_shared()


@pytest.mark.parametrize("recipe", ["recipe_without_sandboxes", "recipe_on_sandboxes"])
async def test_a_rollout_of_the_real_agent_loop(recipe: str) -> None:
    """``recipe_on_sandboxes`` runs it in a real sandbox, and grades it in a second one."""
    letter, done, end = tiny.IDS["a"], tiny.IDS["done"], tiny.IDS[tiny.END]
    server = Server([letter, end], [done, end])
    agent_loop = loop(server, f"tests.recipes.engines.tiny:{recipe}")
    output = await agent_loop.run({"temperature": 1.0}, raw_prompt=[], extra_info={"task_id": "t0"})
    assert isinstance(output, AgentLoopOutput)
    assert output.prompt_ids == [tiny.IDS[tiny.START], letter]
    answered = [tiny.IDS[">"], tiny.IDS["ok"], end]
    assert output.response_ids == [letter, end, *answered, done, end]
    assert output.response_mask == [1, 1, 0, 0, 0, 1, 1]
    assert output.response_logprobs == [-0.5, -0.5, 0.0, 0.0, 0.0, -0.5, -0.5]
    assert (output.reward_score, output.num_turns) == (1.0, 5)
    assert output.extra_fields["max_global_steps"] == 5
    (first, *_), (second, *_) = server.requests
    assert first == second
    assert server.requests[1][1] == output.prompt_ids + output.response_ids[:5]
    assert server.requests[0][2]["stop_token_ids"] == [end]
    fields = output.as_dict()
    assert fields["rm_scores"].tolist() == [0, 0, 0, 0, 0, 0, 1.0]


def test_records_have_exact_ids_masks_and_rewards() -> None:
    output = adapter.output_of(row_of(cases.MULTI))
    assert (output.prompt_ids, output.response_ids) == (list(cases.PROMPT), list(cases.RESPONSE))
    assert (output.response_mask, output.response_logprobs) == (list(cases.RESPONSE_MASK), list(cases.RESPONSE_LOGPROBS))
    assert (output.reward_score, output.extra_fields["min_global_steps"]) == (1.0, 3)
    lost = adapter.output_of(row_of(cases.LOST, filler=9))
    assert (lost.response_ids, lost.response_mask, lost.reward_score) == ([20], [0], 0.0)
    assert lost.extra_fields["holdfast"] == {"status": "aborted", "blame": "infrastructure", "reason": "node-lost", "reward": None}
    truncated = adapter.output_of(row_of(cases.TRUNCATED))
    assert (truncated.response_ids, truncated.reward_score) == ([20, 21, 2], -1.0)


async def test_the_policy_of_the_servers() -> None:
    policy = adapter.ServerPolicy(Server([7, 2]), {"temperature": 0.7}, "r")
    made = await policy.generate((1,), seed=1, max_new_tokens=4, stop={2})
    assert (made.ids, made.finish, made.version) == ((7, 2), Finish.STOP, 5)
    assert (await adapter.ServerPolicy(Server([7]), {}, "r").generate((1,), seed=1, max_new_tokens=1, stop={2})).finish is Finish.LENGTH
    with pytest.raises(PolicyUnavailableError, match="aborted"):
        await adapter.ServerPolicy(Server([7], stop_reason="aborted"), {}, "r").generate((1,), seed=1, max_new_tokens=1, stop={2})
    with pytest.raises(ConfigurationError, match="calculate_log_probs"):
        await adapter.ServerPolicy(Server([7], logprobs=False), {}, "r").generate((1,), seed=1, max_new_tokens=1, stop={2})
    with pytest.raises(ContextLengthError):
        await policy.generate((1,), seed=1, max_new_tokens=0, stop={2})


FIELDS = ("prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs")


class Queue:
    """TransferQueue's two calls, into dictionaries."""

    def __init__(self) -> None:
        self.tags: dict[str, list[str]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.tags.setdefault(key, []).append(tag["status"])

    async def async_kv_batch_put(self, keys: list[str], fields: TensorDict, tags: list[dict[str, Any]], partition_id: str) -> None:
        for index, key in enumerate(keys):
            self.rows[key] = {
                name: fields[name][index] for name in ("prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs")
            }
            self.rows[key]["tag"] = tags[index]


PLAYS: dict[str, Callable[[str, int], Trajectory]] = {}


def scripted(size: int, budget: int) -> AbstractAsyncContextManager[Recipe]:
    numbers = itertools.count()

    def rollouts(policy: Policy) -> Rollout[str]:
        async def rollout(prompt: str, ticket: Any) -> Trajectory:
            return PLAYS["now"](prompt, next(numbers))

        return rollout

    @asynccontextmanager
    async def opened() -> AsyncIterator[Recipe]:
        yield Recipe(rollouts, lambda: Balance(size, budget, size, "0.25", "0.75"))

    return opened()


def recipe_4_of_4(tokenizer: object) -> AbstractAsyncContextManager[Recipe]:
    return scripted(4, 4)


def recipe_4_of_8(tokenizer: object) -> AbstractAsyncContextManager[Recipe]:
    return scripted(4, 8)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Queue]]:
    def made(recipe: str, play: Callable[[str, int], Trajectory]) -> tuple[Any, Queue]:
        PLAYS["now"] = play
        queue = Queue()
        for name in ("async_kv_put", "async_kv_batch_put"):
            monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
        entry = {"_target_": "holdfast_recipes.engines.verl.HoldfastAgentLoop", "recipe": f"{HERE}:{recipe}"}
        monkeypatch.setitem(_agent_loop_registry, "holdfast", entry)
        it = object.__new__(adapter.HoldfastAgentLoopWorker)
        it.config, it.rollout_config = CONFIG, CONFIG.actor_rollout_ref.rollout
        it.llm_client, it.tokenizer, it.processor, it.hf_model_type = Server(), models.tokenizer(), None, None
        it.dataset_cls, it.tools, it.mm_processor_kwargs = RLHFDataset, [], {}
        it.reward_loop_worker_handles, it.distillation_enabled = None, False
        return it, queue

    return made


PROMPT = {"uid": "u1", "agent_name": "holdfast", "raw_prompt": [], "extra_info": {"task_id": "task-1"}, "global_steps": 2}
TRAJECTORY = {"step": 2, "sample_index": 0, "rollout_n": 0, "validate": False}


async def test_the_real_worker_stores_the_chosen_rollouts_and_not_the_lost_one(worker: Callable[..., tuple[Any, Queue]]) -> None:
    it, queue = worker("recipe_4_of_4", lambda prompt, number: MIXED[number % 4])
    await it._run_prompt(dict(PROMPT), {}, dict(TRAJECTORY))
    assert queue.tags == {"u1": ["running", "finished"]}
    assert sorted(queue.rows) == ["u1_0_0", "u1_1_0", "u1_2_0"]
    multi = queue.rows["u1_0_0"]
    assert (multi["prompts"].tolist(), multi["responses"].tolist()) == (list(cases.PROMPT), list(cases.RESPONSE))
    assert multi["response_mask"].tolist() == list(cases.RESPONSE_MASK)
    assert multi["rollout_log_probs"].tolist() == list(cases.RESPONSE_LOGPROBS)
    assert [queue.rows[key]["rm_scores"].sum().item() for key in sorted(queue.rows)] == [1.0, -1.0, -1.0]
    assert multi["tag"]["min_global_steps"] == 3


async def test_algorithm_1_plays_on_until_the_group_is_balanced(worker: Callable[..., tuple[Any, Queue]]) -> None:
    signs = [-1.0] * 4 + [1.0, 1.0, -1.0, -1.0]
    it, queue = worker("recipe_4_of_8", lambda prompt, number: replace(cases.MULTI, reward=signs[number]))
    await it._run_prompt(dict(PROMPT), {}, dict(TRAJECTORY))
    assert queue.tags["u1"][-1] == "finished"
    assert sorted(row["rm_scores"].sum().item() for row in queue.rows.values()) == [-1.0, -1.0, 1.0, 1.0]


async def test_a_dropped_group_and_rollouts_that_raise_are_a_failed_group(worker: Callable[..., tuple[Any, Queue]]) -> None:
    it, queue = worker("recipe_4_of_4", lambda prompt, number: cases.MULTI)
    await it._run_prompt(dict(PROMPT), {}, dict(TRAJECTORY))
    assert (queue.tags, queue.rows) == ({"u1": ["running", "failure"]}, {})

    def raising(prompt: str, number: int) -> Trajectory:
        raise OSError("gone")

    await close_shared()
    it, queue = worker("recipe_4_of_4", raising)
    await it._run_prompt(dict(PROMPT), {}, dict(TRAJECTORY))
    assert (queue.tags["u1"], queue.rows) == (["running", "failure"], {})


async def test_sizes_must_agree_and_tasks_must_be_named(worker: Callable[..., tuple[Any, Queue]], caplog: pytest.LogCaptureFixture) -> None:
    it, queue = worker("recipe_4_of_4", lambda prompt, number: MIXED[number % 4])
    await it._run_prompt({**PROMPT, "__rollout_n__": 8}, {}, dict(TRAJECTORY))
    assert queue.tags["u1"][-1] == "failure"
    assert "groups of 4" in caplog.text
    with pytest.raises(ConfigurationError, match="names no task"):
        adapter.task_of({"extra_info": {}})
    assert adapter.task_of({"task_id": "x"}) == "x"
    with pytest.raises(ConfigurationError, match="names no recipe"):
        await loop(Server(), "").run({}, task_id="t0")


def test_the_estimator_leaves_masked_rows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_adv_estimator_fn("holdfast_grpo") is adapter.holdfast_grpo
    rewards = torch.zeros(6, 3)
    rewards[:, 2] = torch.tensor([1.0, -1.0, -1.0, 0.0, 1.0, 1.0])
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]])
    data = DataProto(
        TensorDict({"token_level_rewards": rewards, "response_mask": mask}, batch_size=6),
        {"uid": np.array(["a"] * 4 + ["b"] * 2, dtype=object)},
    )
    made = compute_advantage(data, "holdfast_grpo", config=OmegaConf.create({"norm_adv_by_std_in_grpo": True})).batch["advantages"]
    assert made[:, 0].tolist() == pytest.approx([1.154701, -0.57735, -0.57735, 0.0, 0.0, 0.0], abs=1e-5)
    assert made[1].tolist() == pytest.approx([-0.57735, 0.0, -0.57735], abs=1e-5)
    ungrouped = adapter.holdfast_grpo(rewards, mask, ["a"] * 4 + ["b"] * 2, OmegaConf.create({"norm_adv_by_std_in_grpo": False}))[0]
    assert ungrouped[:, 0].tolist() == pytest.approx([4 / 3, -2 / 3, -2 / 3, 0.0, 0.0, 0.0], abs=1e-5)


def test_the_launch_file_is_a_configuration_of_the_real_trainer(tmp_path: Path) -> None:
    """verl's own configuration takes every override, and the names in it are those of the adapter."""
    given = launched("verl.sh", "python3", tmp_path, MODEL="m", TRAIN="t")
    assert given[:2] == ["-m", "verl.trainer.main_ppo"]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", given[2:])
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, config.algorithm.adv_estimator, config.trainer.use_v1) == (8, "holdfast_grpo", True)
    assert rollout.agent.agent_loop_manager_class == f"{adapter.__name__}.{adapter.HoldfastAgentLoopManager.__name__}"
    (entry,) = OmegaConf.load(LAUNCH / rollout.agent.agent_loop_config_path)
    assert entry["_target_"] == f"{adapter.__name__}.{adapter.HoldfastAgentLoop.__name__}"
    assert rollout.agent.default_agent_loop == entry.name


def test_the_manager_makes_our_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = adapter.HoldfastAgentLoopManager(CONFIG, llm_client=None)
    assert manager.agent_loop_workers_class.__ray_metadata__.modified_class.__name__ == "HoldfastAgentLoopWorker"
    assert Status("completed")
    assert AgentLoopMetrics().num_preempted == -1
    assert inspect.iscoroutinefunction(adapter.HoldfastAgentLoop.run)
