"""OpenEnv's own client with an environment server of OpenEnv that runs in a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast import SandboxClient
from holdfast.integrations.openenv import HoldfastProvider
from openenv.core.generic_client import GenericEnvClient

SERVER = Path(__file__).with_name("openenv_server.py")


@pytest.fixture
def image(python_image: Callable[[dict[str, Path]], str]) -> str:
    return python_image({"/srv/openenv_server.py": SERVER})


@pytest.mark.timeout(400)
def test_an_episode_in_a_sandbox(image: str, client: SandboxClient, interpreter: str) -> None:
    provider = HoldfastProvider(client=client, command=[interpreter, "/srv/openenv_server.py"], labels={"test": "openenv"})
    url = provider.start_container(image)
    try:
        provider.wait_for_ready(url, timeout_s=280)
        with GenericEnvClient(base_url=url).sync() as env:
            assert env.reset().observation["count"] == 0
            result = env.step({"amount": 41})
            result = env.step({"amount": 1})
            assert (result.observation["count"], result.reward, result.done) == (42, 1.0, True)
        assert provider.sandbox.exec("pgrep -f openenv_server").exit_code == 0
    finally:
        provider.stop_container()
    assert client.list_sandboxes(labels={"test": "openenv"}) == []


def test_a_server_that_does_not_answer_is_a_time_out(client: SandboxClient) -> None:
    provider = HoldfastProvider(client=client, command=["sleep", "60"])
    url = provider.start_container("host")
    try:
        with pytest.raises(TimeoutError, match="/health within 1 s"):
            provider.wait_for_ready(url, timeout_s=1)
    finally:
        provider.stop_container()
        provider.stop_container()


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("openenv.md")
