"""The settings that an agent reads from a container's environment, and the part of that environment that commands see."""

from __future__ import annotations

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.agent.process.users import find_user
from session_agent.agent.settings import AgentSettings


def test_commands_see_the_images_variables_and_not_those_of_the_cluster() -> None:
    settings = AgentSettings.from_environment(
        {
            "PATH": "/usr/bin",
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443",
            "KUBERNETES_FLAVOUR": "theirs",
            "HOLDFAST_AGENT_TOKEN": "ab" * 32,
            "HOLDFAST_AGENT_LISTEN": "tcp://0.0.0.0:8717",
        }
    )
    assert settings.env == {"PATH": "/usr/bin", "KUBERNETES_FLAVOUR": "theirs"}


def test_home_counts_as_given_only_if_it_is_the_agents_own() -> None:
    own = find_user(None).home
    needed = {"HOLDFAST_AGENT_TOKEN": "t", "HOLDFAST_AGENT_LISTEN": "tcp://0.0.0.0:1"}
    for home, given in ((own, own), ("/srv/elsewhere", ""), (None, "")):
        environ = needed if home is None else {**needed, "HOME": home}
        assert AgentSettings.from_environment(environ).given_home == given


def test_entrypoint_and_ulimits_are_parsed() -> None:
    needed = {"HOLDFAST_AGENT_TOKEN": "t", "HOLDFAST_AGENT_LISTEN": "tcp://0.0.0.0:1"}
    plain = AgentSettings.from_environment(needed)
    assert (plain.entrypoint, plain.ulimits) == ((), {})
    environ = {**needed, "HOLDFAST_AGENT_ENTRYPOINT": '["sh", "-c", "é $HOME"]', "HOLDFAST_AGENT_ULIMITS": '{"nofile": [64, 128]}'}
    settings = AgentSettings.from_environment(environ)
    assert (settings.entrypoint, settings.ulimits) == (("sh", "-c", "é $HOME"), {"nofile": (64, 128)})
    assert "HOLDFAST_AGENT_ENTRYPOINT" not in settings.env
    for wrong in ('{"files": [1, 2]}', '{"nofile": [1]}', '{"nofile": ["1", 2]}', "[]"):
        with pytest.raises(HoldfastError, match="ulimits"):
            AgentSettings.from_environment({**needed, "HOLDFAST_AGENT_ULIMITS": wrong})
