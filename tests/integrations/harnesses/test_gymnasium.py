"""Gymnasium's own check of environments on ``ShellEnv``, and episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from holdfast import Sandbox, SandboxClient
from holdfast.integrations.gymnasium import ShellEnv


def solved(sandbox: Sandbox) -> float:
    return float(sandbox.files.exists("/tmp/answer") and sandbox.files.read("/tmp/answer") == b"42\n")


@pytest.fixture
def env(client: SandboxClient) -> Iterator[Any]:
    made = gymnasium.make("holdfast/Shell-v0", client=client, reward=solved, setup="cd /tmp; echo ready", steps=3)
    yield made
    made.close()


def test_passes_gymnasiums_check(client: SandboxClient) -> None:
    env = ShellEnv(client=client, reward=solved)
    env.action_space.seed(1)
    check_env(env, skip_render_check=True)
    env.close()


def test_an_episode(env: Any) -> None:
    assert env.reset(seed=1) == ("ready\n", {"exit_code": 0, "timed_out": False, "truncated": False})
    observation, reward, ended, cut, info = env.step("pwd; X=42; false")
    assert (observation, reward, ended, cut, info["exit_code"]) == ("/tmp\n", 0.0, False, False, 1)
    assert env.step("echo $X > answer")[1:4] == (1.0, True, False)
    assert env.reset()[0] == "ready\n"
    for cut_now in (False, False, True):
        assert env.step("true")[1:4] == (0.0, False, cut_now)


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "1.0" in run_page("gymnasium.md")
