"""The sandbox provider ``holdfast`` of Inspect (extra ``inspect``): ``inspect eval task.py --sandbox holdfast:IMAGE``.

Owns what Inspect's contract for sandboxes means here. The configuration is the name of an image, or a compose file whose services are the
sandboxes of one sample; what a sandbox cannot have (``build``, ``volumes``, ``privileged``, …) is refused by name when the task begins.
Inspect finds this module by the entry point of its group ``inspect_ai``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
from pathlib import PurePosixPath
from typing import Any, Literal, overload
from weakref import WeakKeyDictionary

from inspect_ai.util import (
    ComposeConfig,
    ComposeService,
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    is_compose_yaml,
    is_dockerfile,
    parse_compose_yaml,
    sandboxenv,
)

from holdfast import (
    AsyncSandbox,
    AsyncSandboxClient,
    RemoteFileError,
    SandboxLostError,
    SandboxNotFoundError,
    UserNotFoundError,
    WorkingDirectoryError,
)

_ORPHANED_AFTER_S = 300.0
"""A sandbox is deleted this long after the process of its evaluation has died."""
_NO_USER = 126
_OWNER_MAY_READ = 0o400
_UNDERSTOOD = frozenset(
    {
        "image", "entrypoint", "command", "working_dir", "environment", "user", "mem_limit", "cpus", "deploy", "network_mode",
        "shm_size", "ulimits", "x_default",
    }
)  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    {
        "init", "hostname", "pull_policy", "stdin_open", "tty", "expose", "restart", "stop_grace_period", "healthcheck", "platform",
    }
)  # fmt: skip
"""What changes nothing that a sample can see, or what every sandbox has."""
_images: dict[str, str] = {}
"""The names of images by the paths that Inspect has made of them."""
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncSandboxClient] = WeakKeyDictionary()


@sandboxenv(name="holdfast")
class HoldfastSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample."""

    def __init__(self, sandbox: AsyncSandbox, user: str | None = None, working_dir: str | None = None) -> None:
        super().__init__()
        self.sandbox = sandbox
        """The sandbox itself, for what Inspect has no method for: shells, tunnels, snapshots."""
        self._user = user
        self._working_dir = working_dir

    # Life ---------------------------------------------------------------------------------------------------------

    @classmethod
    def config_files(cls) -> list[str]:
        """The files that Inspect finds by itself."""
        return ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"]

    @classmethod
    def is_docker_compatible(cls) -> bool:
        """Compose files written for docker are understood."""
        return True

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Check the configuration before any sample runs."""
        _services(config)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Create the sandboxes of one sample; either all of them exist afterwards, or none."""
        services = _services(config)
        made: dict[str, SandboxEnvironment] = {}
        try:
            for name, service in services.items():
                made[name] = await cls._create(service, {"inspect_task": task_name[:60], "inspect_service": name[:60]})
        except BaseException:
            await cls.sample_cleanup(task_name, config, made, True)
            raise
        return made

    @classmethod
    async def _create(cls, service: ComposeService, labels: dict[str, str]) -> HoldfastSandboxEnvironment:
        limits = service.deploy.resources.limits if service.deploy and service.deploy.resources else None
        cpu, memory = service.cpus or (limits and limits.cpus), service.mem_limit or (limits and limits.memory)
        sandbox = await _client().create_sandbox(
            service.image or "host",
            cpu=cpu or None,
            memory=_size(memory),
            shm_size=_size(service.shm_size),
            env=_environment(service),
            labels=labels,
            block_network=service.network_mode == "none",
            heartbeat_timeout_s=_ORPHANED_AFTER_S,
            entrypoint=_entrypoint(service),
            ulimits={name: value if isinstance(value, int) else (value["soft"], value["hard"]) for name, value in service.ulimits.items()}
            if service.ulimits
            else None,
        )
        try:
            working_dir, user = service.working_dir, service.user
            if working_dir is not None:
                await sandbox.files.mkdir(working_dir)
            if user is None:  # of an image whose user is not root the files have to be that user's
                uid = (await sandbox.exec(["id", "-u"])).stdout.strip()
                user = None if uid in ("", "0") else uid
            elif working_dir is not None:
                await sandbox.exec(["chown", user, working_dir], user="root")
            return cls(sandbox, user, working_dir)
        except BaseException:
            await sandbox.delete()
            raise

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool) -> None:
        """Delete the sample's sandboxes."""
        await asyncio.gather(*(environment.as_type(cls).sandbox.delete() for environment in environments.values()))

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Close the connections; sandboxes of samples that were left behind end without their heartbeats."""
        client = _clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002  Inspect's name
        """``inspect sandbox cleanup holdfast``: delete the sandbox of this id, or all that evaluations have left."""
        async with AsyncSandboxClient() as client:
            for info in await client.list_sandboxes():
                if info.sandbox_id == id if id is not None else "inspect_task" in info.labels:
                    await client.get_sandbox(info.sandbox_id).delete()

    # Use ----------------------------------------------------------------------------------------------------------

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002  Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command without a shell. Of longer output the end is kept. It runs once: ``timeout_retry`` has no effect, because nothing
        between here and the sandbox hangs in a way that running it again would help. ``concurrency`` is for sandboxes of this machine."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self.sandbox.exec(
                cmd,
                input=input,
                cwd=self._path(cwd or "."),
                env=env,
                user=_user_of(user or self._user),
                timeout=timeout,
                max_output_bytes=limit,
                keep="tail",
            )
        except UserNotFoundError as error:
            return ExecResult(False, _NO_USER, "", f"unable to find user {user}: {error.message}")
        except WorkingDirectoryError as error:
            return ExecResult(False, _NO_USER, "", error.message)
        except (SandboxLostError, SandboxNotFoundError) as error:
            raise SandboxUnavailableError(f"{error.message} ({error.reason or error.code})") from error
        if result.timed_out:
            late = TimeoutError(f"the command timed out after {timeout} seconds")
            late.truncated_output = result.output  # type: ignore[attr-defined]  # where Inspect looks for it
            raise late
        if result.not_executed in ("permission_denied", "not_executable"):
            raise PermissionError(errno.EACCES, result.stderr.strip() or "the program cannot be executed", cmd[0])
        return ExecResult(result.exit_code == 0, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; missing directories are created."""
        try:
            await self.sandbox.files.write(self._path(file), contents, user=_user_of(self._user))
        except RemoteFileError as error:
            raise _local(error, file) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file. One that its owner may not read counts as unreadable, also for root, as Inspect's docker provider has it."""
        path, user = self._path(file), _user_of(self._user)
        try:
            there = await self.sandbox.files.stat(path, user=user)
            if there.size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE and not there.is_dir:
                raise OutputLimitExceededError(limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None)
            if not there.is_dir and not there.mode & _OWNER_MAY_READ:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
            data = await self.sandbox.files.read(path, user=user)
        except RemoteFileError as error:
            raise _local(error, file) from error
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person reaches the sandbox."""
        words = ["holdfast", "shell", *(["-u", user] if user else []), self.sandbox.id]
        return SandboxConnection(type="holdfast", command=shlex.join(words), container=self.sandbox.id)

    def default_polling_interval(self) -> float:
        """Seconds between the looks of Inspect's own services into a sandbox."""
        return 0.2

    def _path(self, path: str) -> str:
        """A relative path starts at the service's directory, or else at the image's."""
        return path if self._working_dir is None else str(PurePosixPath(self._working_dir) / path)


def _client() -> AsyncSandboxClient:
    """One client for each event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = AsyncSandboxClient()
    return _clients[loop]


def _services(config: Any) -> dict[str, ComposeService]:
    """The services of a configuration, that of the default sandbox first. Raises ``ValueError`` for what cannot be provided."""
    if config is None:
        config = os.environ.get("HOLDFAST_IMAGE") or "host"
    if is_dockerfile(config):
        raise ValueError(f"{config}: build it first, `holdfast build -t NAME -f {config} DIR`, and name it: holdfast:NAME")
    if isinstance(config, str) and not is_compose_yaml(config):
        config = _image_of(config)
        return {"default": ComposeService(image=config, network_mode="none")}  # as Inspect's own default
    compose = parse_compose_yaml(config) if isinstance(config, str) else config
    if not isinstance(compose, ComposeConfig):
        raise ValueError(f"a sandbox is configured by an image's name or a compose file, not by {type(config).__name__}")
    for name, service in compose.services.items():
        given = {field for field in service.model_fields_set if getattr(service, field) not in (None, False)}
        if refused := sorted(given - _UNDERSTOOD - _WITHOUT_EFFECT):
            raise ValueError(f"the service {name} asks for {', '.join(refused)}, which a sandbox of Holdfast does not have")
        if service.network_mode not in (None, "none", "bridge"):
            raise ValueError(f"the service {name} has the network mode {service.network_mode}: only none and bridge are understood")
        if not service.image:
            raise ValueError(f"the service {name} names no image")
    first = next((name for name, service in compose.services.items() if service.x_default), "default")
    if first not in compose.services:
        raise ValueError("no service is called 'default', and none has 'x-default: true'")
    return {first: compose.services[first], **compose.services}


def _image_of(config: str) -> str:
    """The image that the user has named: Inspect takes it for a file beside the task, and makes its path absolute.

    It works in the task's directory when a task begins, and that is where the name is found; a sample may begin elsewhere.
    """
    if os.path.isabs(config) and config not in _images:
        _images[config] = os.path.relpath(config)
    return _images.get(config, config)


def _environment(service: ComposeService) -> dict[str, str] | None:
    given = service.environment
    if isinstance(given, dict):
        pairs = [(name, os.environ.get(name) if value is None else str(value)) for name, value in given.items()]
    else:
        pairs = [(name, value if equals else os.environ.get(name)) for name, equals, value in (row.partition("=") for row in given or ())]
    return {name: value for name, value in pairs if value is not None} or None


def _entrypoint(service: ComposeService) -> bool | list[str]:
    """The words to start, or False: a sandbox lives without a command, so what only keeps a container alive is not started."""
    words: list[str] = []
    for given in (service.entrypoint, service.command):
        words += shlex.split(given) if isinstance(given, str) else given or []
    idle = words[:1] in (["sleep"], ["tail"], ["/bin/sleep"]) or words[:3] == ["tail", "-f", "/dev/null"]
    return False if idle else words or False


def _size(size: str | int | None) -> str | int | None:
    """A size in docker's units, in which ``m`` is a power of two."""
    if not isinstance(size, str):
        return size
    text = size.lower().removesuffix("b").removesuffix("i")
    return f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in "kmgt" else text


def _user_of(user: str | None) -> str | int | None:
    return int(user) if user is not None and user.isdecimal() else user


def _local(error: RemoteFileError, file: str) -> Exception:
    """The error of Python's own file functions, with the path as the caller wrote it."""
    number = error.errno or errno.EIO
    return OSError(number, error.message if number == errno.EIO else os.strerror(number), file)
