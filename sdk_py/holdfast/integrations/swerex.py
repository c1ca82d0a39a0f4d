"""A deployment of SWE-ReX (extra ``swerex``) whose runtime is in a sandbox: ``HoldfastDeployment(image=…)``.

Owns the sandbox. The runtime is SWE-ReX's own ``RemoteRuntime``, which the service answers below ``/sandboxes/{id}/swerex``; nothing of
SWE-ReX runs in the sandbox.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.runtime.remote import RemoteRuntime
from swerex.utils.log import get_logger

from holdfast import AsyncSandbox, AsyncSandboxClient, HoldfastError


class HoldfastDeployment(AbstractDeployment):
    """One sandbox of ``image``; ``options`` are those of ``create_sandbox``. ``runtime_timeout_s`` bounds SWE-ReX's checks for life."""

    def __init__(
        self,
        *,
        image: str = "host",
        url: str | None = None,
        api_key: str | None = None,
        runtime_timeout_s: float = 60.0,
        logger: logging.Logger | None = None,
        **options: Any,
    ) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._image, self._options, self._runtime_timeout_s = image, options, runtime_timeout_s
        self._url, self._api_key = url, api_key
        self._hooks = CombinedDeploymentHook()
        self._client: AsyncSandboxClient | None = None
        self._sandbox: AsyncSandbox | None = None
        self._runtime: RemoteRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Report the steps of ``start`` to ``hook``."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> RemoteRuntime:
        """SWE-ReX's runtime in the sandbox. Raises ``DeploymentNotStartedError``."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox itself. Raises ``DeploymentNotStartedError``."""
        if self._sandbox is None:
            raise DeploymentNotStartedError
        return self._sandbox

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox can be used. Raises ``DeploymentNotStartedError``."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Create the sandbox. Raises ``DeploymentStartupError``."""
        if self._runtime is not None:
            return
        self._hooks.on_custom_step("Starting a sandbox")
        self._client = AsyncSandboxClient(self._url, self._api_key)
        try:
            self._sandbox = await self._client.create_sandbox(self._image, **{"labels": {"harness": "swe-rex"}, **self._options})
        except HoldfastError as error:
            await self.stop()
            raise DeploymentStartupError(str(error)) from error
        host = f"{self._client.url}/sandboxes/{self._sandbox.id}/swerex"
        self._runtime = RemoteRuntime(
            host=host, port=None, auth_token=self._client.api_key, timeout=self._runtime_timeout_s, logger=self.logger
        )

    async def stop(self) -> None:
        """Delete the sandbox. It may be called several times."""
        sandbox, client = self._sandbox, self._client
        self._runtime = self._sandbox = self._client = None
        if sandbox is not None:
            with contextlib.suppress(HoldfastError):  # it ends by itself
                await sandbox.delete()
        if client is not None:
            await client.close()
