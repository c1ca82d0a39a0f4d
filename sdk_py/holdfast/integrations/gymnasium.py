"""A sandbox as an environment of Gymnasium (extra ``gymnasium``): an action is a command line, an observation its output.

``gymnasium.make("holdfast/Shell-v0", image=…, reward=…)`` after this module was imported, or ``ShellEnv(…)`` itself. ``reward`` is called
with the sandbox after each command. A sandbox that is lost raises: such an episode has no return, and must not be scored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from holdfast import Sandbox, SandboxClient, Shell

_CHARACTERS = "".join(map(chr, [9, 10, *range(32, 127)]))
_OUTPUT_BYTES = 16 * 1024
_COMMAND_CHARACTERS = 64 * 1024

Reward = Callable[[Sandbox], float]


class ShellEnv(gymnasium.Env[str, str]):
    """Episodes in a living shell, each in a new sandbox of ``image``; ``setup`` is a command line that prepares it.

    An episode ends when ``reward`` gives at least ``solved_at``, and is cut after ``steps`` commands. ``options`` are those of
    ``create_sandbox``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's form

    def __init__(
        self,
        image: str = "host",
        *,
        reward: Reward,
        setup: str = "",
        steps: int = 30,
        timeout_s: float = 60.0,
        solved_at: float = 1.0,
        client: SandboxClient | None = None,
        **options: Any,
    ) -> None:
        self.action_space = Text(_COMMAND_CHARACTERS, min_length=0, charset=_CHARACTERS)
        self.observation_space = Text(_OUTPUT_BYTES, min_length=0, charset=_CHARACTERS)
        self._image, self._options, self._setup = image, options, setup
        self._reward, self._solved_at = reward, solved_at
        self._steps, self._timeout_s = steps, timeout_s
        self._client, self._owns_client = client or SandboxClient(), client is None
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None
        self._taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a new sandbox. The observation is the output of ``setup``."""
        super().reset(seed=seed)
        self._end()
        self._sandbox = self._client.create_sandbox(self._image, **self._options)
        self._shell = self._sandbox.shell()
        self._taken = 0
        return self._run(self._setup) if self._setup else ("", {"exit_code": 0})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run a command line in the shell of the episode."""
        if self._sandbox is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        observation, info = self._run(action)
        self._taken += 1
        reward = self._reward(self._sandbox)
        return observation, reward, reward >= self._solved_at, self._taken >= self._steps, info

    def _run(self, command: str) -> tuple[str, dict[str, Any]]:
        assert self._shell is not None
        result = self._shell.run(command, self._timeout_s, stderr="stdout", max_output_bytes=_OUTPUT_BYTES, keep="both")
        shown = "".join(character if character in _CHARACTERS else "?" for character in result.output)
        return shown, {"exit_code": result.exit_code, "timed_out": result.timed_out, "truncated": result.truncated}

    def close(self) -> None:
        """Delete the sandbox."""
        self._end()
        if self._owns_client:
            self._client.close()

    def _end(self) -> None:
        sandbox, self._sandbox, self._shell = self._sandbox, None, None
        if sandbox is not None:
            sandbox.delete()


gymnasium.register(id="holdfast/Shell-v0", entry_point=ShellEnv)
