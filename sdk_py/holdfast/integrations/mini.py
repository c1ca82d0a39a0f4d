"""An environment of mini-swe-agent whose commands run in a sandbox (extra ``mini``).

``--environment-class holdfast.integrations.mini.HoldfastEnvironment``, or ``environment_class`` in a configuration. Its options are those
of mini-swe-agent's own docker environment, so that only the class has to change. Runners that set the image for their built-in classes only
(SWE-bench) take ``MSWEA_DOCKER_EXECUTABLE=holdfast-docker`` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Any

from minisweagent.environments.docker import DockerEnvironment, DockerEnvironmentConfig

from holdfast import HoldfastError, SandboxClient, SandboxLostError, SandboxNotFoundError

_client: SandboxClient | None = None
_client_lock = threading.Lock()


class HoldfastEnvironmentConfig(DockerEnvironmentConfig):
    """The docker environment's options. ``executable`` and ``run_args`` have no meaning here."""

    cpu: float | str | None = None
    memory: str | None = None
    block_network: bool = False
    """As in ``create_sandbox``; open by default, as docker's default network is."""
    heartbeat_timeout_s: float = 300.0
    """The sandbox is deleted so many seconds after this process has died, and in any case after ``container_timeout``."""


class HoldfastEnvironment(DockerEnvironment):
    """One sandbox. A command's failure is a result; a sandbox that is lost raises, so that its run is excluded and not scored."""

    config: HoldfastEnvironmentConfig

    def __init__(self, *, config_class: type = HoldfastEnvironmentConfig, **options: Any) -> None:
        self._sandbox: Any = None
        super().__init__(config_class=config_class, **options)

    def _start_container(self) -> None:
        config = self.config
        sandbox = _shared_client().create_sandbox(
            config.image,
            cpu=config.cpu,
            memory=config.memory,
            block_network=config.block_network,
            lifetime_s=_seconds(config.container_timeout),
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            ready_timeout_s=config.pull_timeout,
            labels={"harness": "mini-swe-agent"},
        )
        self._sandbox, self.container_id = sandbox, sandbox.id
        sandbox.files.mkdir(config.cwd)  # as docker does for -w

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run ``action["command"]`` and return ``output`` (both streams in the order of writing), ``returncode`` and ``exception_info``.

        Raises mini-swe-agent's ``Submitted``, and ``SandboxLostError`` or ``SandboxNotFoundError`` once the sandbox has ended.
        """
        config = self.config
        forwarded = {name: os.environ[name] for name in config.forward_env if name in os.environ}
        limit_s = timeout or config.timeout
        try:
            result = self._sandbox.exec(
                [*config.interpreter, action.get("command", "")],
                cwd=cwd or config.cwd,
                env={**forwarded, **config.env},
                timeout=limit_s,
                stderr="stdout",
            )
        except (SandboxLostError, SandboxNotFoundError):
            raise
        except HoldfastError as error:
            return self._failed("", error, f"{error.message} {error.hint}".strip())
        if result.timed_out:
            return self._failed(result.output, TimeoutError(), f"the command timed out after {limit_s} seconds and was killed")
        output = {"output": result.output, "returncode": result.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    @staticmethod
    def _failed(output: str, error: Exception, message: str) -> dict[str, Any]:
        info = f"An error occurred while executing the command: {message}"
        return {
            "output": output,
            "returncode": -1,
            "exception_info": info,
            "extra": {"exception_type": type(error).__name__, "exception": message},
        }

    def cleanup(self) -> None:
        """Delete the sandbox. It may be called several times."""
        sandbox, self._sandbox = getattr(self, "_sandbox", None), None
        if sandbox is not None:
            with contextlib.suppress(HoldfastError):  # it ends by itself
                sandbox.delete()


def _shared_client() -> SandboxClient:
    """One client for all environments of this process."""
    global _client
    with _client_lock:
        if _client is None:
            _client = SandboxClient()
            atexit.register(_client.close)
        return _client


def _seconds(text: str) -> float:
    """A time as sleep(1) takes it: ``90``, ``30s``, ``5m``, ``2h``, ``1d``."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
