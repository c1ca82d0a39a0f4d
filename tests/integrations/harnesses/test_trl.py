"""TRL's own trainer with ``environment_factory``: a small random model trains for two steps, and each rollout has a sandbox."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast import Sandbox, SandboxClient
from holdfast.integrations.trl import ShellEnvironment


def done(sandbox: Sandbox, row: dict[str, Any]) -> float:
    return float(sandbox.files.exists(row.get("wanted", "/tmp/done")))


def test_a_rollout_and_its_reward(client: SandboxClient) -> None:
    environment = ShellEnvironment(reward=done, setup="cd /tmp; echo ready", labels={"test": "trl"})
    assert environment.reset(prompt="ignored", wanted="/tmp/x") == "ready\n"
    assert environment.bash("pwd; echo low >&2; false") == "/tmp\nlow\n[exit code 1]"
    assert environment.bash("touch x") == ""
    assert environment.get_reward() == 1.0
    assert environment.reset() == "ready\n"
    assert environment.get_reward() == 0.0
    assert client.list_sandboxes(labels={"test": "trl"}) == []


def test_a_lost_sandbox_has_no_reward(client: SandboxClient) -> None:
    environment = ShellEnvironment(reward=done, labels={"test": "trl-lost"})
    environment.reset()
    (record,) = client.list_sandboxes(labels={"test": "trl-lost"})
    client.get_sandbox(record.sandbox_id).delete()
    assert "the sandbox was lost" in environment.bash("true")
    assert environment.get_reward() is None


@pytest.mark.timeout(600)
def test_the_trainer_trains(tmp_path: Path, client: SandboxClient) -> None:
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from tests.integrations.harnesses.trl_miniature import model_and_tokenizer

    torch.manual_seed(0)
    model, tokenizer = model_and_tokenizer()
    config = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_completion_length=24, max_steps=2,
        report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, max_tool_calling_iterations=1,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "go"}]}] * 8)
    rewards: list[float | None] = []

    def reward(sandbox: Sandbox, row: dict[str, Any]) -> float:
        rewards.append(float(len(rewards) % 2))
        assert sandbox.exec("echo here").stdout == "here\n"
        return float(rewards[-1] or 0)

    factory = functools.partial(ShellEnvironment, reward=reward, labels={"test": "trl-trains"})
    trainer = GRPOTrainer(model=model, processing_class=tokenizer, args=config, train_dataset=rows, environment_factory=factory)
    trainer.train()
    assert len(rewards) == 8
    assert [entry["reward"] for entry in trainer.state.log_history if "reward" in entry] == [0.5, 0.5]
    assert client.list_sandboxes(labels={"test": "trl-trains"}) == []


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("trl.md")
