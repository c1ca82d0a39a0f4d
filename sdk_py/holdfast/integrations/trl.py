"""A sandbox as an environment of TRL (extra ``trl``): ``GRPOTrainer(environment_factory=…)``, whose model calls ``bash`` as a tool.

``environment_factory=functools.partial(ShellEnvironment, reward=…)``. TRL makes one object for each rollout of a batch and resets it for
the next, so its public methods are tools: everything else here has a leading underscore. Recipes that choose groups themselves and train on
exact token ids are ``holdfast_recipes.engines.trl``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from holdfast import HoldfastError, Sandbox, SandboxClient, SandboxLostError, SandboxNotFoundError, Shell

_OUTPUT_BYTES = 16 * 1024
_ORPHANED_AFTER_S = 300.0
"""A sandbox is deleted this long after the process of the trainer has died."""
_lock = threading.Lock()
_client: SandboxClient | None = None

Reward = Callable[[Sandbox, dict[str, Any]], float]


class ShellEnvironment:
    """Rollouts in a living shell, each in a new sandbox. ``reward`` is called once with the sandbox and the row of the data set.

    ``setup`` is a command line that prepares the sandbox. A row may have ``image`` and ``setup`` of its own. ``options`` are those of
    ``create_sandbox``.
    """

    def __init__(self, *, reward: Reward, image: str = "host", setup: str = "", timeout_s: float = 60.0, **options: Any) -> None:
        self._reward, self._image, self._setup, self._timeout_s, self._options = reward, image, setup, timeout_s, options
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None
        self._row: dict[str, Any] = {}
        self._lost = False

    def reset(self, **row: Any) -> str | None:
        """Begin a rollout in a new sandbox. Returns the output of ``setup``, which TRL appends to the prompt, or None if it has none."""
        self._end()
        self._row, self._lost = row, False
        options = {"heartbeat_timeout_s": _ORPHANED_AFTER_S, "labels": {"harness": "trl"}, **self._options}
        self._sandbox = _shared_client().create_sandbox(row.get("image") or self._image, **options)
        self._shell = self._sandbox.shell()
        setup = row.get("setup") or self._setup
        return self._run(setup) or None if setup else None

    def bash(self, command: str) -> str:
        """Run a command line in a bash that keeps its directory and variables, and return its output.

        Args:
            command: The command line.

        Returns:
            Both output streams in the order of writing, and the exit code if it is not 0.
        """
        try:
            return self._run(command)
        except (SandboxLostError, SandboxNotFoundError) as error:
            self._lost = True
            return f"[the sandbox was lost: {error.message}]"

    def get_reward(self) -> float | None:
        """The reward of the rollout; None, which TRL leaves out of mean and loss, if its sandbox was lost."""
        if self._sandbox is None or self._lost:
            return None
        try:
            return float(self._reward(self._sandbox, self._row))
        except (SandboxLostError, SandboxNotFoundError):
            return None
        finally:
            self._end()

    def _run(self, command: str) -> str:
        if self._shell is None:
            raise RuntimeError("reset() begins a rollout")
        result = self._shell.run(command, self._timeout_s, stderr="stdout", max_output_bytes=_OUTPUT_BYTES, keep="both")
        return f"{result.output}[exit code {result.exit_code}]" if result.exit_code else result.output

    def _end(self) -> None:
        sandbox, self._sandbox, self._shell = self._sandbox, None, None
        if sandbox is not None:
            with contextlib.suppress(HoldfastError):  # it ends by itself
                sandbox.delete()

    def __del__(self) -> None:
        if getattr(self, "_sandbox", None) is not None:
            self._end()


def _shared_client() -> SandboxClient:
    """One client for all rollouts of this process. Its connections end with the process."""
    global _client
    with _lock:
        if _client is None:
            _client = SandboxClient()
        return _client
