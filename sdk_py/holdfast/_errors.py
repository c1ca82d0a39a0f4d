"""The exceptions of the SDK. Codes, hints and faults are defined in ``holdfast_wire.errors``; this file defines the classes.

    HoldfastError                       code, message, hint, fault, is_infrastructure, reason, retryable, detail
    ├── ConfigurationError              no URL or key was found, or a setting is malformed
    ├── InvalidArgumentError            (a ValueError) the request itself is wrong
    │   ├── InvalidPathError
    │   ├── UserNotFoundError · WorkingDirectoryError
    │   ├── RequestTooLargeError
    │   │   └── ArgumentsTooLongError
    │   └── DockerfileError             what is wrong in which line
    ├── AuthenticationError             key missing or refused
    ├── ClientClosedError               (a RuntimeError) the client was closed before
    ├── QuotaError · ConflictError · UnsupportedError
    ├── NotFoundError
    │   ├── SandboxNotFoundError
    │   └── ImageNotFoundError
    ├── ServiceError                    the service failed
    │   ├── ServiceUnavailableError     it cannot be reached, or asks to retry later
    │   └── ImagePullError              a registry failed, or cannot be reached
    ├── SandboxNotReadyError
    ├── WaitTimeoutError                (a TimeoutError) a local wait ran out; nothing was cancelled
    ├── SandboxLostError                the sandbox is gone: reason, fault, and what is known of the command
    │   └── SandboxGoneError            (a SandboxNotFoundError) its record was requested
    ├── OutcomeUnknownError             the command may or may not have run
    ├── SessionLostError · SessionFencedError · ProtocolError
    ├── ShellLostError · SpawnError · CommandFailedError · CancelledRemotelyError · PortUnreachableError
    ├── InputClosedError                (a BrokenPipeError) there is no reader of what was written
    ├── BuildError                      a step of a build failed: line, instruction, exit_code, output
    ├── ArchiveError
    └── RemoteFileError                 (an OSError)
        ├── RemoteFileNotFoundError     (a FileNotFoundError)
        ├── RemoteFileExistsError       (a FileExistsError)
        ├── RemotePermissionError       (a PermissionError)
        ├── RemoteIsADirectoryError     (an IsADirectoryError)
        ├── RemoteNotADirectoryError    (a NotADirectoryError)
        └── NoSpaceError · ChecksumError

Messages never hold keys or payloads.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from holdfast_wire import errors as wire
from holdfast_wire.agent_errors import reported_error
from holdfast_wire.errors import TABLE

HoldfastError = wire.HoldfastError
"""The base of every exception of the project."""
ProtocolError = wire.ProtocolError
"""The other end broke the protocol."""

MESSAGE_CHARACTERS = 2000
"""A message from a peer is cut at this length, because it may come from code in a sandbox."""


class ConfigurationError(HoldfastError):
    """No service address or key was found, or a setting cannot be read."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("invalid_argument", message, hint=hint, fault="caller")


class InvalidArgumentError(HoldfastError, ValueError):
    """The request is malformed; sending it again will not help."""


class InvalidPathError(InvalidArgumentError):
    """A path is empty, too long, leads out of its directory, or does not name a file."""


class UserNotFoundError(InvalidArgumentError):
    """The image has no such user or group, or the sandbox no such id."""


class WorkingDirectoryError(InvalidArgumentError):
    """``cwd`` does not exist, is not a directory, or may not be entered."""


class RequestTooLargeError(InvalidArgumentError):
    """More was sent at once than a limit allows."""


class ArgumentsTooLongError(RequestTooLargeError):
    """The arguments and variables of a command are larger than the kernel or a request allows."""


class DockerfileError(InvalidArgumentError):
    """A Dockerfile, a .dockerignore or an argument of a build is wrong. ``line`` counts from 1; ``path`` is the file's name."""

    def __init__(self, message: str, *, line: int = 0, path: str = "", hint: str = "") -> None:
        self.line, self.path, self.problem = line, path, message
        super().__init__("invalid_argument", f"{path}:{line}: {message}" if path else message, hint=hint, detail={"line": line})


class AuthenticationError(HoldfastError):
    """The API key is missing or refused, or the secret of a session does not match."""


class ClientClosedError(HoldfastError, RuntimeError):
    """The client was closed, and with it the connections of its sandboxes, groups and images."""


class QuotaError(HoldfastError):
    """A quota or a bounded queue is full: wait, or free something."""


class ConflictError(HoldfastError):
    """The same id or key is in use for something else."""


class UnsupportedError(HoldfastError):
    """The service, the image or the chosen transport cannot do this."""


class NotFoundError(HoldfastError):
    """The named resource does not exist."""


class SandboxNotFoundError(NotFoundError):
    """There is no such sandbox, or it belongs to another key."""


class ImageNotFoundError(NotFoundError):
    """There is no image of that name, here or in its registry."""


class ServiceError(HoldfastError):
    """The service failed."""


class ServiceUnavailableError(ServiceError):
    """The service cannot be reached, or asks to repeat the request later."""


class ImagePullError(ServiceError):
    """The image could not be pulled: its registry failed, refused, or cannot be reached.

    Whether the registry has the image is not known.
    """


class SandboxNotReadyError(HoldfastError):
    """The sandbox is still starting, or did not become ready in time."""


class WaitTimeoutError(HoldfastError, TimeoutError):
    """A wait ran out of time. The command or event that it waited for is not cancelled."""

    def __init__(self, code: str = "wait_timeout", message: str | None = None, **more: Any) -> None:
        super().__init__(code, "the wait timed out" if (code, message) == ("wait_timeout", None) else message, **more)


class _CommandError(HoldfastError):
    """Base of the errors that carry what is known about a command whose outcome is not known."""

    @property
    def command_id(self) -> str | None:
        """The command's id, None if the error is not about a command."""
        value = self.detail.get("command_id")
        return value if isinstance(value, str) else None

    @property
    def accepted(self) -> bool | None:
        """Whether the agent had accepted the request; None if that is not known."""
        value = self.detail.get("accepted")
        return value if isinstance(value, bool) else None

    @property
    def started(self) -> bool | None:
        """Whether the command had started; None if that is not known.

        False: this client's request never reached the agent, so the command can safely run elsewhere, unless another client used the same
        command id before.
        """
        value = self.detail.get("started")
        return value if isinstance(value, bool) else None

    @property
    def received(self) -> dict[int, int]:
        """How many bytes of stdout (1) and stderr (2) this client had received."""
        value = self.detail.get("received")
        return dict(value) if isinstance(value, dict) else {}


class SandboxLostError(_CommandError):
    """The sandbox is gone. ``reason`` states why (oom, evicted, ttl, deleted, node-lost, …), ``fault`` which side caused it."""


class SandboxGoneError(SandboxLostError, SandboxNotFoundError):
    """The record of a sandbox was requested that has ended: it is lost, with the reason, and it is not found."""


class OutcomeUnknownError(_CommandError):
    """The command may have run. It is not repeated: check its effects first."""


class SessionLostError(_CommandError):
    """The session expired at the agent, or the agent restarted; the sandbox may still exist."""


class SessionFencedError(HoldfastError):
    """Another connection attached to this session later, and the session belongs to the latest one."""


class ShellLostError(HoldfastError):
    """The shell is gone."""


class SpawnError(HoldfastError):
    """The sandbox could not start a process (out of processes or memory)."""


class InputClosedError(HoldfastError, BrokenPipeError):
    """The command takes no input: it has ended, its input was closed, or it was started without input."""

    def __init__(self, code: str, message: str | None = None, **more: Any) -> None:
        super().__init__(code, message, **more)
        self.errno = errno.EPIPE
        self.strerror = self.message


class CommandFailedError(HoldfastError):
    """Raised by ``CommandResult.check()``; ``result`` is the result."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__("internal", message, hint="", fault="workload", retryable=False)
        self.code = "command_failed"
        self.result = result


class BuildError(HoldfastError):
    """A step of a build failed. ``exit_code`` is that of a RUN's command, ``output`` the end of what it wrote."""

    def __init__(
        self,
        message: str,
        *,
        line: int = 0,
        instruction: str = "",
        exit_code: int | None = None,
        output: str = "",
        hint: str = "",
        fault: str = "workload",
    ) -> None:
        super().__init__("internal", message, hint=hint, retryable=False, detail={"line": line, "exit_code": exit_code})
        self.fault = "infrastructure" if fault == "infrastructure" else "workload"
        self.code = "build_failed"
        self.line, self.instruction, self.exit_code, self.output = line, instruction, exit_code, output


class CancelledRemotelyError(HoldfastError):
    """Another client cancelled the command or transfer."""


class PortUnreachableError(HoldfastError):
    """Nothing in the sandbox listens on the port."""


class ArchiveError(HoldfastError):
    """An archive is malformed, hostile, or over a limit."""


class RemoteFileError(HoldfastError, OSError):
    """A file operation in the sandbox failed. ``filename`` is the remote path, if it is known."""

    ERRNO: ClassVar[int] = errno.EIO

    def __init__(self, code: str, message: str | None = None, **more: Any) -> None:
        super().__init__(code, message, **more)
        self.errno = self.ERRNO
        self.strerror = self.message
        path = self.detail.get("path")
        self.filename = path if isinstance(path, str) else None


class RemoteFileNotFoundError(RemoteFileError, FileNotFoundError):
    """No such file or directory in the sandbox."""

    ERRNO = errno.ENOENT


class RemoteFileExistsError(RemoteFileError, FileExistsError):
    """The target exists, or a directory is not empty."""

    ERRNO = errno.EEXIST


class RemotePermissionError(RemoteFileError, PermissionError):
    """The sandbox's user may not do this, or the file system is read-only."""

    ERRNO = errno.EACCES


class RemoteIsADirectoryError(RemoteFileError, IsADirectoryError):
    """The path is a directory, but a file is needed."""

    ERRNO = errno.EISDIR


class RemoteNotADirectoryError(RemoteFileError, NotADirectoryError):
    """The path is not a directory, but a directory is needed."""

    ERRNO = errno.ENOTDIR


class NoSpaceError(RemoteFileError):
    """The sandbox's disk is full."""

    ERRNO = errno.ENOSPC


class ChecksumError(RemoteFileError):
    """The received data differs from the data that was sent."""


_CLASSES: dict[str, type[HoldfastError]] = {
    name: cls for name, cls in globals().items() if isinstance(cls, type) and issubclass(cls, HoldfastError) and not name.startswith("_")
}


for _public in _CLASSES.values():
    _public.__module__ = "holdfast"  # where they are imported from: tracebacks name it


def error(code: str, message: str, **more: Any) -> HoldfastError:
    """The exception of ``code``'s class. ``more`` as for ``HoldfastError``."""
    kind = TABLE.get(code, TABLE["internal"])
    if kind.sdk_class == "ProtocolError":
        return ProtocolError(message, code)
    return _CLASSES[kind.sdk_class](code, message[:MESSAGE_CHARACTERS], **more)


def typed(raw: HoldfastError, **detail: Any) -> HoldfastError:
    """``raw`` as an exception of the matching class in this file, with ``detail`` added."""
    facts = {**raw.detail, **detail}
    if raw.kind.sdk_class == "ProtocolError" or (type(raw) is not HoldfastError and facts == raw.detail):
        return raw
    more = {"hint": raw.hint, "fault": raw.fault, "reason": raw.reason, "retryable": raw.retryable}
    return error(raw.code, raw.message, detail=facts, **more)


def gone(lost: SandboxLostError) -> SandboxGoneError:
    """The same for a request of a record, whose caller may expect a ``NotFoundError``."""
    return SandboxGoneError(
        lost.code,
        lost.message,
        hint=lost.hint,
        fault=lost.fault,
        reason=lost.reason,
        retryable=lost.retryable,
        detail=lost.detail,
    )


def from_map(body: Any, **detail: Any) -> HoldfastError:
    """The exception for the service's error map, of a problem document. Every field is checked."""
    return typed(HoldfastError.from_map(body), **detail)


def from_agent(body: Any, **detail: Any) -> HoldfastError:
    """The exception for an error map that an agent sent, reduced to what an agent may claim (``holdfast_wire.agent_errors``)."""
    return typed(reported_error(body), **detail)
