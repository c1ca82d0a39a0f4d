"""What an agent takes from a container's environment, and what of it commands see."""

from __future__ import annotations

from session_agent.settings import AgentSettings


def test_commands_see_the_image_and_not_the_cluster() -> None:
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
