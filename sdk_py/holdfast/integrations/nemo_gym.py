"""A sandbox provider of NeMo Gym (extra ``nemo_gym``; Python 3.12 or newer), found by its entry point ``nemo_gym.sandbox_providers``.

``sandbox_provider: {holdfast: {}}`` in a configuration; the mapping is the constructor's arguments. NeMo Gym owns the order in which these
methods are called. A command's failure or time-out is a result; a sandbox that is lost raises, so that no rollout is scored for it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from holdfast import AsyncSandbox, AsyncSandboxClient, HoldfastError, SandboxNotFoundError

_STATES = {"ready": SandboxStatus.RUNNING, "pending": SandboxStatus.STARTING, "failed": SandboxStatus.ERROR}


class HoldfastProvider:
    """Sandboxes of one service. ``options`` are defaults for ``create_sandbox``, which a spec's ``provider_options`` override."""

    name = "holdfast"

    def __init__(self, *, url: str | None = None, api_key: str | None = None, image: str = "host", **options: Any) -> None:
        self._url, self._api_key, self._image, self._options = url, api_key, image, options
        self._client: AsyncSandboxClient | None = None

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Create a sandbox, and its working directory. Raises ``SandboxCreateError``."""
        if self._client is None:
            self._client = AsyncSandboxClient(self._url, self._api_key)
        resources = spec.resources
        if resources.gpu:
            raise SandboxCreateError("sandboxes of Holdfast have no GPU")
        asked: dict[str, Any] = {
            "env": dict(spec.env),
            "labels": dict(spec.metadata),
            "lifetime_s": spec.ttl_s,
            "ready_timeout_s": spec.ready_timeout_s,
            "cpu": resources.cpu,
            "memory": resources.memory_mib and f"{resources.memory_mib}Mi",
            "disk": resources.disk_gib and f"{resources.disk_gib}Gi",
            "entrypoint": spec.entrypoint,
        }
        asked = {**self._options, **{name: value for name, value in asked.items() if value}, **spec.provider_options}
        try:
            sandbox = await self._client.create_sandbox(spec.image or self._image, **asked)
            try:
                if spec.workdir:
                    await sandbox.files.mkdir(spec.workdir)
            except BaseException:
                await sandbox.delete()
                raise
        except (HoldfastError, ValueError, TypeError) as error:
            raise SandboxCreateError(str(error)) from error
        return SandboxHandle(sandbox.id, self.name, sandbox)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command line with bash, or sh. After a time-out ``error_type`` is ``timeout``, and all of its processes were killed."""
        result = await _sandbox(handle).exec(command, cwd=cwd, env=env, timeout=timeout_s, user=user)
        answer = SandboxExecResult(result.stdout, result.stderr, result.exit_code)
        return replace(answer, error_type="timeout") if result.timed_out else answer

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a local file in."""
        await _sandbox(handle).files.upload(source_path, target_path)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file out."""
        await _sandbox(handle).files.download(source_path, target_path)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The state of the sandbox, as the service has it."""
        try:
            info = await _sandbox(handle).refresh()
        except SandboxNotFoundError:
            return SandboxStatus.STOPPED
        return _STATES.get(info.status, SandboxStatus.UNKNOWN)

    async def close(self, handle: SandboxHandle) -> None:
        """Delete the sandbox. It may be called several times."""
        await _sandbox(handle).delete()

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _sandbox(handle: SandboxHandle) -> AsyncSandbox:
    sandbox: AsyncSandbox = handle.raw
    return sandbox
