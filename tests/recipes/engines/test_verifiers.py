"""verifiers' own evaluation drives the taskset and harness in real sandboxes, against a scripted OpenAI-compatible endpoint; and its traces
of known rollouts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from holdfast_recipes.engines import verifiers as adapter
from holdfast_recipes.engines.shared import close_shared
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig

from tests.recipes.engines import cases
from tests.recipes.pipeline.endpoint import Endpoint, endpoint

PLUGINS = Path(__file__).parents[3] / "infra" / "recipes" / "engines"
HAND_IN = "touch work; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat work"


def tool_call_message(command: str, number: int) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


class Model:
    """Writes the letters of its list one rollout after the other, hands in, and never does where the letter is ``never``."""

    def __init__(self, *letters: str) -> None:
        self.letters, self.begun = list(letters), 0

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        turns = [message for message in body["messages"] if message["role"] == "assistant"]
        if not turns:
            self.begun += 1
            return tool_call_message(f"echo {self.letters[(self.begun - 1) % len(self.letters)]} >> work; echo ok", 0)
        first = turns[0]["tool_calls"][0]["function"]["arguments"]
        return tool_call_message("echo ok" if "never" in first else HAND_IN, len(turns))


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("NO_KEY", "scripted")
    monkeypatch.delenv("VF_RUN_ID", raising=False)


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_shared()


def settings(
    url: str, folder: Path, *, recipe: str = "recipe_on_sandboxes", rollouts: int = 2, tasks: tuple[str, ...] = ("t0", "t1")
) -> EvalConfig:
    return EvalConfig.model_validate(
        {
            "env": {
                "taskset": {"id": "holdfast_swe", "recipe": f"tests.recipes.engines.tiny:{recipe}", "tasks": list(tasks)},
                "agent": {"runtime": {"type": "subprocess"}},
            },
            "model": "scripted",
            "client": {"base_url": url, "api_key_var": "NO_KEY"},
            "num_rollouts": rollouts,
            "max_concurrent": 1,
            "rich": None,
            "push": False,
            "output_dir": str(folder),
        }
    )


async def evaluated(model: Model, folder: Path, **more: Any) -> list[vf.Trace]:
    with endpoint(model) as served:
        assert isinstance(served, Endpoint)
        episodes = await run_eval(settings(served.url, folder, **more))
    return [trace for episode in episodes for trace in episode.traces]


@pytest.mark.usefixtures("plugins")
async def test_its_own_evaluation_plays_tasks_in_real_sandboxes(tmp_path: Path) -> None:
    traces = await evaluated(Model("a", "b"), tmp_path)
    assert [error.message for trace in traces for error in trace.errors] == []
    assert [trace.ok for trace in traces] == [True] * 4
    assert sorted(trace.reward for trace in traces) == [-1.0, -1.0, 1.0, 1.0]
    assert {trace.task.key for trace in traces} == {"t0", "t1"}
    for trace in traces:
        assert [node.message.role for node in trace.branches[0].nodes] == ["user", "assistant", "tool", "assistant"]
        assert trace.num_turns == 2
        assert trace.info["holdfast"]["sandbox"].startswith("sb-")
    (stored,) = tmp_path.rglob("traces.jsonl")
    assert len(stored.read_text().splitlines()) == 4


@pytest.mark.usefixtures("plugins")
async def test_a_truncated_rollout_is_scored_and_named_by_its_budget(tmp_path: Path) -> None:
    (trace,) = await evaluated(Model("never a"), tmp_path, recipe="recipe_without_sandboxes", rollouts=1, tasks=("t0",))
    assert (trace.ok, trace.is_truncated, trace.stop_condition) == (True, True, "max_turns")
    assert (trace.reward, trace.num_turns) == (1.0, 3)


@pytest.mark.usefixtures("plugins")
async def test_infrastructure_is_an_error_and_never_a_reward(tmp_path: Path) -> None:
    (trace,) = await evaluated(Model("a"), tmp_path, recipe="broken", rollouts=1, tasks=("t0",))
    assert not trace.ok
    assert trace.last_error is not None
    assert trace.last_error.type == "SandboxError"
    assert trace.stop_condition == "sandbox_error"
    assert trace.reward == 0
    assert trace.info["holdfast"]["blame"] == "infrastructure"


def test_traces_have_exact_ids_masks_and_rewards() -> None:
    trace = adapter.trace_of(cases.MULTI, 0.5)
    (branch,) = trace.branches
    assert branch.token_ids == list(cases.IDS)
    assert branch.sampled_mask == [bool(bit) for bit in cases.MASK]
    assert branch.logprobs == list(cases.LOGPROBS)
    assert branch.advantages == [0.5 * bit for bit in cases.MASK]
    assert [node.message.role for node in branch.nodes] == ["user", "assistant", "tool", "assistant"]
    assert (trace.reward, trace.ok, trace.num_turns, trace.has_error) == (1.0, True, 2, False)
    again = vf.WireTrace.model_validate(trace.to_record(float_decimals=None))
    assert again.branches[0].token_ids == list(cases.IDS)
    truncated = adapter.trace_of(cases.TRUNCATED)
    assert (truncated.is_truncated, truncated.reward, truncated.branches[0].token_ids) == (True, -1.0, list(cases.IDS[:6]))


@pytest.mark.parametrize(
    ("run", "error"), [(cases.LOST, "SandboxError"), (cases.UNGRADED, "SandboxError"), (cases.TIMED_OUT, "HarnessError")]
)
def test_what_carries_no_loss_has_no_trainable_token(run: Any, error: str) -> None:
    trace = adapter.trace_of(run)
    assert not any(trace.branches[0].sampled_mask)
    assert trace.branches[0].token_ids == list(cases.IDS)
    assert (trace.ok, trace.reward, trace.rewards) == (False, 0, {"solved": None})
    assert trace.last_error is not None
    assert trace.last_error.type == error
    assert adapter.trace_of(cases.NEVER).branches[0].token_ids == []


def test_a_group_has_its_advantages_and_no_lost_member() -> None:
    traces = adapter.traces_of(cases.group(*cases.MIXED))
    found = {trace.id: next(node.advantages for node in trace.nodes if node.advantages) for trace in traces}
    assert {name: values[0] for name, values in found.items()} == pytest.approx(cases.MIXED_ADVANTAGES)


@pytest.mark.usefixtures("plugins")
def test_the_launch_file_is_a_configuration_of_the_real_evaluation() -> None:
    config = EvalConfig.model_validate(tomllib.loads((PLUGINS / "verifiers.toml").read_text()))
    assert (config.num_rollouts, config.env.taskset.recipe) == (3, "recipe.json")  # type: ignore[attr-defined]
    assert config.env.agent_harnesses()["agent"].id == "holdfast_swe"


@pytest.mark.usefixtures("plugins")
def test_the_taskset_is_found_by_its_module() -> None:
    config = settings("http://127.0.0.1:1/v1", Path("none"))
    assert type(config.env.taskset).__name__ == "HoldfastTasksetConfig"
    taskset = vf.load_taskset(config.env.taskset)
    assert [task.key for task in taskset] == ["t0", "t1"]
