"""A sandbox as a text environment of SkyRL Gym (``skyrl-gym``): the model answers with commands, the reward comes at the end.

Owns the protocol with the model: the first block of ``bash`` in an answer is run in the living shell of the episode; an answer without one
ends it. Subclass ``ShellEnv`` and give ``reward``, then ``skyrl_gym.envs.register``. ``extras`` of a row may name ``image`` and ``setup``.
"""

from __future__ import annotations

import re
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from holdfast import Sandbox, SandboxClient, Shell

_BLOCK = re.compile(r"```(?:bash|sh)\s*\n(.*?)```", re.DOTALL)
_OUTPUT_BYTES = 16 * 1024


class ShellEnv(BaseTextEnv):
    """One episode in one sandbox."""

    image = "host"
    max_turns = 30
    timeout_s = 60.0

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.extras = extras or {}
        self.max_turns = int(self.extras.get("max_turns", type(self).max_turns))
        self._client: SandboxClient | None = None
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None

    def reward(self, sandbox: Sandbox) -> float:
        """The reward of the episode, at its end. A subclass must give it."""
        raise NotImplementedError(f"{type(self).__name__} has no reward: override ShellEnv.reward(sandbox), which returns a number")

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Create the sandbox. The prompt is passed on."""
        self.turns = 0
        self._client = SandboxClient()
        self._sandbox = self._client.create_sandbox(self.extras.get("image", self.image))
        self._shell = self._sandbox.shell()
        if setup := self.extras.get("setup"):
            self._shell.run(setup, self.timeout_s).check()
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Run the commands of an answer."""
        assert self._shell is not None
        assert self._sandbox is not None
        self.turns += 1
        block = _BLOCK.search(action)
        observations: list[dict[str, str]] = []
        if block is not None:
            result = self._shell.run(block[1], self.timeout_s, stderr="stdout", max_output_bytes=_OUTPUT_BYTES, keep="both")
            observations = [{"role": "user", "content": f"{result.output}[exit code {result.exit_code}]"}]
        done = block is None or self.turns >= self.max_turns
        reward = self.reward(self._sandbox) if done else 0.0
        return BaseTextEnvStepOutput(observations=[] if done else observations, reward=reward, done=done, metadata={})

    def close(self) -> None:
        """Delete the sandbox."""
        if self._sandbox is not None:
            self._sandbox.delete()
        if self._client is not None:
            self._client.close()
        self._sandbox = self._client = self._shell = None
