"""An environment of Harbor, the runner of Terminal-Bench 2.0 (extra ``harbor``; Python 3.12 or newer).

``harbor run -p TASK -a AGENT -e holdfast.integrations.harbor:HoldfastEnvironment``. The image is the ``docker_image`` of the task, or is
built from its ``environment/Dockerfile``. Harbor owns the order in which these methods are called.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from weakref import WeakKeyDictionary

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from holdfast import AsyncSandbox, AsyncSandboxClient

_ORPHANED_AFTER_S = 300.0
"""A sandbox is deleted this long after the process of its trial has died."""
_building: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncSandboxClient] = WeakKeyDictionary()


class HoldfastEnvironment(BaseEnvironment):
    """One sandbox of one trial."""

    _sandbox: AsyncSandbox | None = None

    @staticmethod
    def type() -> str:
        """The name in Harbor's records."""
        return "holdfast"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What a task may ask for."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Cpu and memory are limits."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image and not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(
                f"{self.environment_dir} has no Dockerfile, and the task names no docker_image in [environment] of task.toml"
            )

    async def start(self, force_build: bool) -> None:
        """Create the sandbox, Harbor's directories in it, and the files of the task's environment."""
        config, memory_mb = self.task_env_config, self._effective_memory_mb
        image = config.docker_image
        if not image or (force_build and (self.environment_dir / "Dockerfile").is_file()):
            image = await _built(Path(self.environment_dir), use_cache=not force_build)
        self._sandbox = await _client().create_sandbox(
            image,
            cpu=self._effective_cpus,
            memory=None if memory_mb is None else f"{memory_mb}Mi",
            env=self._startup_env(),
            labels={"harness": "harbor", "session": self.session_id[:60]},
            block_network=self._network_disabled,
            heartbeat_timeout_s=_ORPHANED_AFTER_S,
        )
        if config.workdir:
            await self._sandbox.files.mkdir(config.workdir)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Delete the sandbox, or leave it running."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await (sandbox.delete() if delete else sandbox.close())

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox itself. Raises ``RuntimeError`` before ``start``."""
        if self._sandbox is None:
            raise RuntimeError("the environment was not started, or was stopped")
        return self._sandbox

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command line with bash, or sh. Raises ``RuntimeError`` after a time-out, when all of its processes were killed."""
        result = await self.sandbox.exec(
            command,
            cwd=cwd or self.task_env_config.workdir or None,
            env=self._merge_env(env),
            timeout=timeout_sec,
            user=self._resolve_user(user),
        )
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a local file in."""
        await self.sandbox.files.upload(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a local directory into one of the sandbox."""
        await self.sandbox.files.upload(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out."""
        await self.sandbox.files.download(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a directory of the sandbox into a local one."""
        await self.sandbox.files.download(source_dir, target_dir)


async def _built(directory: Path, *, use_cache: bool) -> str:
    """The name of the image of a task's Dockerfile. Trials of one task build it one after the other: all but the first find its steps."""
    lock = _building.setdefault(asyncio.get_running_loop(), {}).setdefault(str(directory), asyncio.Lock())
    async with lock:
        return (await _client().images.build(directory, use_cache=use_cache)).name


def _client() -> AsyncSandboxClient:
    """One client for each event loop. Its connections end with the process."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = AsyncSandboxClient()
    return _clients[loop]
