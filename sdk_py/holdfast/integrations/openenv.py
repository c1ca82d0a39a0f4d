"""A provider of OpenEnv (extra ``openenv``), whose environment servers run in sandboxes: ``EnvClient.from_docker_image(…, provider=…)``.

Owns the sandbox, and a forwarded port of this machine that leads to its server; the server is the image's own command, or ``command``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from openenv.core.containers.runtime.providers import ContainerProvider

from holdfast import Sandbox, SandboxClient, Tunnel

PORT = 8000
"""Where servers of OpenEnv listen."""
_POLL_S = 0.1


class HoldfastProvider(ContainerProvider):
    """One environment server in one sandbox. ``command`` starts it in place of the image's own, ``options`` are those of
    ``create_sandbox``."""

    def __init__(self, *, client: SandboxClient | None = None, command: Sequence[str] | None = None, **options: Any) -> None:
        self._client, self._owns_client = client or SandboxClient(), client is None
        self._command, self._options = command, options
        self._sandbox: Sandbox | None = None
        self._tunnel: Tunnel | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the server. Raises ``RuntimeError`` before ``start_container``."""
        if self._sandbox is None:
            raise RuntimeError("the environment server was not started, or was stopped")
        return self._sandbox

    def start_container(self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **options: Any) -> str:
        """Create the sandbox and its server; the address at which this machine reaches it. ``port`` is where the server listens."""
        if self._sandbox is not None:
            raise RuntimeError("a server is running: stop_container() first")
        entrypoint = list(self._command) if self._command else True
        self._sandbox = self._client.create_sandbox(image, **{"env": env_vars, "entrypoint": entrypoint, **self._options, **options})
        try:
            self._tunnel = self._sandbox.tunnel(port or PORT)
        except BaseException:
            self.stop_container()
            raise
        host, local_port = self._tunnel.address
        return f"http://{host}:{local_port}"

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until the server answers ``/health``. Raises ``TimeoutError``."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                with urlopen(f"{base_url}/health", timeout=max(_POLL_S, end - time.monotonic())) as answer:
                    if answer.status == 200:
                        return
            except (URLError, OSError) as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"the environment server did not answer /health within {timeout_s:g} s: {error}") from error
            time.sleep(_POLL_S)

    def stop_container(self) -> None:
        """Delete the sandbox. It may be called several times."""
        sandbox, self._sandbox = self._sandbox, None
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            tunnel.close()
        if sandbox is not None:
            sandbox.delete()

    def close(self) -> None:
        """Delete the sandbox and close the connections."""
        self.stop_container()
        if self._owns_client:
            self._client.close()
