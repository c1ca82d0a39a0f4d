"""A sandbox client of the OpenAI Agents SDK (extra ``openai_agents``) for ``SandboxAgent``: ``HoldfastSandboxClient``.

``RunConfig(sandbox=SandboxRunConfig(client=HoldfastSandboxClient(), options=HoldfastSandboxClientOptions(image=…)))``. Owns the translation
of its sessions: the manifest, snapshots and capabilities are the SDK's own, made of the calls here. A session that ends deletes its
sandbox; a state that was saved before continues in the same sandbox while it lives, else in a new one with the files of its snapshot.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any, Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import BaseSandboxSession, SandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import validate_tarfile
from pydantic import Field

from holdfast import AsyncSandbox, AsyncSandboxClient, AsyncTunnel, HoldfastError, RemoteFileNotFoundError, SandboxNotFoundError

_ORPHANED_AFTER_S = 300.0
"""A sandbox is deleted this long after the process of its session has died."""


class HoldfastSandboxClientOptions(BaseSandboxClientOptions):
    """What a session's sandbox is made of; ``create`` takes further arguments of ``create_sandbox``."""

    type: Literal["holdfast"] = "holdfast"
    image: str = "host"
    exposed_ports: tuple[int, ...] = ()
    create: dict[str, Any] = Field(default_factory=dict)


class HoldfastSandboxSessionState(SandboxSessionState):
    """What finds the sandbox again, or makes another."""

    type: Literal["holdfast"] = "holdfast"
    sandbox_id: str = ""
    image: str = "host"
    create: dict[str, Any] = Field(default_factory=dict)


class HoldfastSandboxSession(BaseSandboxSession):
    """One sandbox. Made by the client."""

    state: HoldfastSandboxSessionState

    def __init__(self, client: AsyncSandboxClient, state: HoldfastSandboxSessionState) -> None:
        self.state = state
        self._client = client
        self._sandbox: AsyncSandbox | None = None
        self._tunnels: dict[int, AsyncTunnel] = {}

    async def ensure_sandbox(self) -> AsyncSandbox:
        """The sandbox, which is created at the first call."""
        if self._sandbox is None:
            environment = await self.state.manifest.environment.resolve()
            options = {"heartbeat_timeout_s": _ORPHANED_AFTER_S, "labels": {"harness": "openai-agents"}, **self.state.create}
            options["env"] = {**(options.get("env") or {}), **environment}
            self._sandbox = await self._client.create_sandbox(self.state.image, **options)
            self.state.sandbox_id = self._sandbox.id
        return self._sandbox

    async def reconnect(self) -> bool:
        """Take the sandbox of the state if it is there; whether it is."""
        if not self.state.sandbox_id:
            return False
        sandbox = self._client.get_sandbox(self.state.sandbox_id)
        try:
            await sandbox.refresh()
        except SandboxNotFoundError:
            return False
        self._sandbox = sandbox
        return True

    async def _prepare_backend_workspace(self) -> None:
        try:
            await (await self.ensure_sandbox()).files.mkdir(self.state.manifest.root)
        except HoldfastError as error:
            raise WorkspaceStartError(path=self._workspace_root_path(), cause=error, retryable=error.retryable) from error

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command, as ``user`` without sudo. Raises ``ExecTimeoutError``, after which all of its processes are dead."""
        words = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._run(words, timeout, user)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(word) for word in command], timeout, None)

    async def _run(self, words: list[str], timeout: float | None, user: str | User | None) -> ExecResult:
        sandbox = await self.ensure_sandbox()
        try:
            result = await sandbox.exec(words, cwd=self._directory(), timeout=timeout, user=_name(user))
        except HoldfastError as error:
            raise ExecTransportError(command=words, cause=error, message=str(error), retryable=error.retryable) from error
        if result.timed_out:
            raise ExecTimeoutError(command=words, timeout_s=timeout)
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    def _directory(self) -> str | None:
        return self.state.manifest.root if self.state.workspace_root_ready else None

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """A file's content."""
        checked = await self._validate_path_access(path)
        try:
            return io.BytesIO(await (await self.ensure_sandbox()).files.read(checked.as_posix(), user=_name(user)))
        except RemoteFileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except HoldfastError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error, retryable=error.retryable) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, with the directories that it needs."""
        checked = await self._validate_path_access(path, for_write=True)
        content = data.read()
        try:
            await (await self.ensure_sandbox()).files.write(checked.as_posix(), content, user=_name(user))
        except HoldfastError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error, retryable=error.retryable, message=str(error)) from error

    async def running(self) -> bool:
        """Whether the sandbox exists and is ready."""
        if self._sandbox is None:
            return False
        try:
            return (await self._sandbox.refresh()).status == "ready"
        except HoldfastError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar stream, without what its manifest makes anew."""
        root = self._workspace_root_path()
        skipped = sorted(self._persist_workspace_skip_relpaths())
        with tempfile.TemporaryDirectory(prefix="holdfast-workspace-") as folder:
            target = Path(folder) / "tree"
            try:
                await (await self.ensure_sandbox()).files.download(root.as_posix(), target)
            except HoldfastError as error:
                raise WorkspaceArchiveReadError(path=root, cause=error, retryable=error.retryable) from error
            return await asyncio.to_thread(_packed, target, skipped)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Write the files of a tar stream into the workspace. A member that would leave it raises before anything is written."""
        root = self._workspace_root_path()
        raw = data.read()
        with tempfile.TemporaryDirectory(prefix="holdfast-workspace-") as folder:
            try:
                await asyncio.to_thread(_unpack, raw, Path(folder))
                await (await self.ensure_sandbox()).files.upload(folder, root.as_posix())
            except (HoldfastError, tarfile.TarError, ValueError, OSError) as error:
                raise WorkspaceArchiveWriteError(path=root, cause=error, message=str(error)) from error

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        if port not in self._tunnels:
            self._tunnels[port] = await (await self.ensure_sandbox()).tunnel(port)
        host, local_port = self._tunnels[port].address
        return ExposedPortEndpoint(host=host, port=local_port, tls=False)

    async def _shutdown_backend(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self._tunnels.clear()
        if sandbox is not None:
            await sandbox.delete()


class HoldfastSandboxClient(BaseSandboxClient[HoldfastSandboxClientOptions]):
    """Sessions in sandboxes of the service that ``client`` talks to (by default that of ``HOLDFAST_URL``). ``close`` ends it."""

    backend_id = "holdfast"
    supports_default_options = True

    def __init__(
        self,
        client: AsyncSandboxClient | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        super().__init__()
        self._client = client or AsyncSandboxClient()
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: HoldfastSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """A session in a new sandbox."""
        asked = options or HoldfastSandboxClientOptions()
        session_id = uuid.uuid4()
        state = HoldfastSandboxSessionState(
            session_id=session_id,
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=asked.exposed_ports,
            image=asked.image,
            create=dict(asked.create),
        )
        inner = HoldfastSandboxSession(self._client, state)
        await inner.ensure_sandbox()
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Delete the session's sandbox. It may be called several times."""
        await session._inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of a saved state: in its sandbox if that lives, else in a new one."""
        if not isinstance(state, HoldfastSandboxSessionState):
            raise TypeError(f"a state of {state.type!r} cannot be resumed by {type(self).__name__}")
        state.assert_path_grants_rebound()
        inner = HoldfastSandboxSession(self._client, state)
        found = await inner.reconnect()
        if not found:
            state.workspace_root_ready = False
            await inner.ensure_sandbox()
        inner._set_start_state_preserved(found)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A state that was saved as JSON."""
        return self._deserialize_session_state_payload(payload, HoldfastSandboxSessionState)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _packed(tree: Path, skipped: list[Path]) -> io.IOBase:
    """A directory as a tar stream. Beyond 8 MiB it is in a file that ends with the stream."""
    for path in skipped:
        place = tree / path
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.is_dir():
            shutil.rmtree(place)
    stream = tempfile.SpooledTemporaryFile(max_size=8 * 1024 * 1024)  # noqa: SIM115  the caller closes it
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(tree, arcname=".")
    stream.seek(0)
    return stream


def _unpack(raw: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        validate_tarfile(archive)
        archive.extractall(folder, filter="tar")
