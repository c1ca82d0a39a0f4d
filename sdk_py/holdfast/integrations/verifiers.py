"""A sandbox as a runtime of verifiers (extra ``verifiers``): ``agent.run(task, runtime=HoldfastRuntime(image))``.

Owns the translation of its calls. verifiers 0.4 chooses runtimes by a closed list of types, so a configuration cannot name this one; there
its own type ``e2b`` works with the service's E2B interface. The caller starts and stops the runtime, as with every runtime that is lent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.base import BaseRuntimeInfo, ProgramResult, Runtime, RuntimeProcess

from holdfast import STDERR, STDOUT, AsyncProcess, AsyncSandbox, AsyncSandboxClient, AsyncTunnel, HoldfastError, SandboxClient

_UNREAD_BYTES = 16 * 1024 * 1024


class HoldfastRuntime(Runtime):
    """One sandbox of ``image``. ``options`` are those of ``create_sandbox``. A sandbox that is lost raises ``SandboxError``."""

    supports_user = True

    def __init__(self, image: str, *, name: str | None = None, client: AsyncSandboxClient | None = None, **options: Any) -> None:
        super().__init__(name)
        self._image, self._options = image, options
        self._client, self._owns_client = client, client is None
        self._sandbox: AsyncSandbox | None = None
        self._tunnels: dict[int, AsyncTunnel] = {}
        self.config = SimpleNamespace(type="holdfast", image=image)
        self.info = BaseRuntimeInfo()

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox itself. Raises ``SandboxError`` before ``start``."""
        if self._sandbox is None:
            raise SandboxError("the runtime was not started, or was stopped")
        return self._sandbox

    async def start(self) -> None:
        """Create the sandbox."""
        with _translated():
            if self._client is None:
                self._client = AsyncSandboxClient()
            self._sandbox = await self._client.create_sandbox(self._image, **{"labels": {"harness": "verifiers"}, **self._options})
            self.info.id = self._sandbox.id

    async def teardown(self) -> None:
        """Delete the sandbox."""
        sandbox, client = self._sandbox, self._client
        if sandbox is not None:
            with contextlib.suppress(HoldfastError):  # it ends by itself
                await sandbox.delete()
        self._sandbox = None
        self._tunnels.clear()
        if self._owns_client and client is not None:
            self._client = None
            await client.close()

    def cleanup(self) -> None:
        """Delete the sandbox where no event loop is left."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            with contextlib.suppress(HoldfastError), SandboxClient() as client:
                client.get_sandbox(sandbox.id).delete()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program to its end."""
        with _translated():
            result = await self.sandbox.exec(argv, env=self.process_env(env), user=self.user)
        return ProgramResult(result.exit_code, result.stdout, result.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a program whose streams the caller reads and writes."""
        with _translated():
            return _LiveProcess(await self.sandbox.start(argv, env=self.process_env(env), user=self.user))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program whose output goes to the file ``log``."""
        words = ["sh", "-c", 'log=$1; shift; exec "$@" > "$log" 2>&1', "sh", log, *argv]
        with _translated():
            process = await self.sandbox.start(words, env=self.process_env(env), user=self.user, stdin=False, detached=True)
            await process.detach()

    async def expose(self, port: int) -> str:
        """An address of this machine that leads to ``port`` in the sandbox."""
        with _translated():
            if port not in self._tunnels:
                self._tunnels[port] = await self.sandbox.tunnel(port)
        host, local_port = self._tunnels[port].address
        return f"http://{host}:{local_port}"

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with _translated():
            return await self.sandbox.files.read(path, length=max_bytes, user=self.user)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the directories that it needs."""
        with _translated():
            await self.sandbox.files.write(path, data, user=self.user)


class _LiveProcess(RuntimeProcess):
    """A process of the sandbox. Of a stream that nobody reads the newest ``_UNREAD_BYTES`` are kept while the other is read."""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        self._unread = {STDOUT: bytearray(), STDERR: bytearray()}
        self._reading = asyncio.Lock()
        self.stdout = self._stream(STDOUT)
        self.stderr = self._stream(STDERR)

    async def _stream(self, number: int) -> AsyncIterator[bytes]:
        mine = self._unread[number]
        while True:
            async with self._reading:
                chunk = None if mine else await self._process.read()
                if chunk is not None:
                    unread = self._unread[chunk.stream]
                    unread += chunk.data
                    del unread[:-_UNREAD_BYTES]
            data = bytes(mine)
            mine.clear()
            if data:
                yield data
            elif chunk is None:
                return

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def wait(self) -> int:
        return (await self._process.wait()).exit_code

    async def poll(self) -> int | None:
        return (await self._process.wait()).exit_code if self._process.done else None

    async def terminate(self) -> None:
        await self._process.terminate()

    async def kill(self) -> None:
        await self._process.kill()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise ``SandboxError`` for every error of the service: verifiers masks the rollout."""
    try:
        yield
    except HoldfastError as error:
        raise SandboxError(str(error)) from error
