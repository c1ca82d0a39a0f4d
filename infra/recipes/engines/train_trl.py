"""GRPO with TRL: `python train_trl.py --recipe recipe.json --model MODEL` beside a Holdfast service (HOLDFAST_URL, HOLDFAST_API_KEY).

Samples from the trainer's own model, which is right for small models. `--asynchronous` trains with AsyncGRPOTrainer instead: rollouts go on
while it learns, and a vLLM server (`--server`) samples them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from holdfast_recipes.engines.swe import SweSettings, opened
from holdfast_recipes.engines.tokenizer import HfTokenizer
from holdfast_recipes.engines.trl import GroupRollouts, episode_reward
from holdfast_recipes.engines.trl_async import RolloutWorker
from holdfast_recipes.engines.vllm import VllmCompletions
from holdfast_recipes.pipeline import files
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def words(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="GRPO with TRL on Holdfast")
    parser.add_argument("--recipe", type=Path, required=True, help="settings of the recipe, such as recipe.json")
    parser.add_argument("--model", required=True, help="a checkpoint, by name or folder")
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--steps", type=int, default=150, help="updates (%(default)s)")
    parser.add_argument("--groups", type=int, default=16, help="prompts in an update (%(default)s)")
    parser.add_argument("--rate", type=float, default=1e-6, help="learning rate (%(default)s)")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--server", default="http://127.0.0.1:8000", help="of vLLM, with --asynchronous (%(default)s)")
    parser.add_argument("--cpu", action="store_true", help="train without a GPU")
    return parser.parse_args(given)


def common(arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    """Clipping as in the paper's GUI recipe, no KL; a batch on one GPU is one group, and the rest is accumulated."""
    settings = {"output_dir": arguments.output, "max_steps": arguments.steps, "learning_rate": arguments.rate, "logging_steps": 1}
    settings |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": arguments.groups, "lr_scheduler_type": "cosine"}
    settings |= {"num_generations": size, "epsilon": 0.2, "epsilon_high": 0.28, "report_to": []}
    return settings | ({"use_cpu": True, "bf16": False} if arguments.cpu else {})


def synchronous(arguments: argparse.Namespace, settings: SweSettings, tokenizer: Any, opening: Any) -> None:
    rollouts = GroupRollouts(opening)
    tasks = [task.task_id for task in files.tasks(settings.tasks)]
    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=episode_reward,
        args=GRPOConfig(**common(arguments, settings.size), beta=0.0, loss_type="dapo"),
        train_dataset=Dataset.from_dict({"prompt": tasks * (1 + arguments.groups // len(tasks))}),
        processing_class=tokenizer,
        rollout_func=rollouts,
    )
    try:
        trainer.train()
    finally:
        rollouts.close()
        print(dict(rollouts.counts))


def asynchronous(arguments: argparse.Namespace, settings: SweSettings, tokenizer: Any, opening: Any) -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    policy = VllmCompletions(arguments.server, arguments.model)
    worker = RolloutWorker(opening, policy, in_flight=2 * arguments.groups, buffered=arguments.groups * settings.size)
    trainer = AsyncGRPOTrainer(
        arguments.model,
        args=AsyncGRPOConfig(**common(arguments, settings.size), max_staleness=1, vllm_server_base_url=arguments.server),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "prompts are the rollout worker's"}]]}),
        processing_class=tokenizer,
        rollout_worker=worker,
    )
    try:
        trainer.train()
    finally:
        worker.stop()


def main(given: list[str]) -> int:
    arguments = words(given)
    settings = SweSettings.read(arguments.recipe)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    opening = opened(settings, HfTokenizer(tokenizer))
    (asynchronous if arguments.asynchronous else synchronous)(arguments, settings, tokenizer, opening)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
