"""Holdfast: computers for language-model agents, each driven over one persistent, resumable session.

``SandboxClient`` and ``AsyncSandboxClient`` are the way in; both have the same methods. This module is the list of public
names: what is not here may change without notice. A name is loaded when it is first used, so that a program that needs one API does not pay
for the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast._async.batch import AsyncBatch
    from holdfast._async.client import AsyncSandboxClient
    from holdfast._async.events import AsyncEvents
    from holdfast._async.files import AsyncFiles
    from holdfast._async.group import AsyncGroup
    from holdfast._async.images import AsyncImages
    from holdfast._async.listener import AsyncConnection, AsyncListener
    from holdfast._async.process import AsyncCommandStream, AsyncInteraction, AsyncProcess, AsyncTerminal
    from holdfast._async.recordings import AsyncRecordings
    from holdfast._async.sandbox import AsyncSandbox
    from holdfast._async.shell import AsyncShell
    from holdfast._async.snapshots import AsyncBranches
    from holdfast._async.tenants import AsyncKeys, AsyncLimits, AsyncProjects
    from holdfast._async.tunnel import AsyncTunnel
    from holdfast._async.watch import AsyncWatch
    from holdfast._build_results import BuildEvent
    from holdfast._errors import (  # isort: skip
        ArchiveError, ArgumentsTooLongError, AuthenticationError, BuildError, CancelledRemotelyError, ChecksumError,
        ClientClosedError, CommandFailedError, ConfigurationError, ConflictError, DockerfileError, HoldfastError,
        ImageNotFoundError, ImagePullError,
        InputClosedError, InvalidArgumentError, InvalidPathError, NoSpaceError, NotFoundError, OutcomeUnknownError,
        PortUnreachableError, ProtocolError, QuotaError, RemoteFileError, RemoteFileExistsError, RemoteFileNotFoundError,
        RemoteIsADirectoryError, RemoteNotADirectoryError, RemotePermissionError, RequestTooLargeError, SandboxGoneError,
        SandboxLostError,
        SandboxNotFoundError, SandboxNotReadyError, ServiceError, ServiceUnavailableError, SessionFencedError, SessionLostError,
        ShellLostError, SpawnError, UnsupportedError, UserNotFoundError, WaitTimeoutError, WorkingDirectoryError,
    )  # fmt: skip
    from holdfast._event_results import ActivityEvent, EventGap, PullEvent, SandboxEvent
    from holdfast._file_results import FileEntry, FileEvent, FileLink, FileMatch, PatchResult, TransferResult
    from holdfast._history_results import PastCommand
    from holdfast._recording_results import RecordedCommand, RecordingInfo, commands_of
    from holdfast._requests import ClusterOptions
    from holdfast._results import (  # isort: skip
        STDERR, STDOUT, Address, Cause, Chunk, CommandResult, GroupInfo, ImageInfo, ListeningPort, Lost, PauseResult, PreviewUrl,
        SandboxInfo, StreamCount,
    )  # fmt: skip
    from holdfast._sync.batch import Batch
    from holdfast._sync.client import SandboxClient
    from holdfast._sync.events import Events
    from holdfast._sync.files import Files
    from holdfast._sync.group import Group
    from holdfast._sync.images import Images
    from holdfast._sync.listener import Connection, Listener
    from holdfast._sync.process import CommandStream, Interaction, Process, Terminal
    from holdfast._sync.recordings import Recordings
    from holdfast._sync.sandbox import Sandbox
    from holdfast._sync.shell import Shell
    from holdfast._sync.snapshots import Branches
    from holdfast._sync.tenants import Keys, Limits, Projects
    from holdfast._sync.tunnel import Tunnel
    from holdfast._sync.watch import Watch
    from holdfast._tenant_results import KeyInfo, LimitInfo, NewKey, ProjectInfo

__version__ = "0.1.0.dev0"

__all__ = [
    "STDERR", "STDOUT", "ActivityEvent", "Address", "ArchiveError", "ArgumentsTooLongError", "AsyncBatch", "AsyncBranches",
    "AsyncCommandStream", "AsyncConnection", "AsyncEvents", "AsyncFiles", "AsyncGroup", "AsyncImages", "AsyncInteraction",
    "AsyncKeys", "AsyncLimits", "AsyncListener", "AsyncProcess", "AsyncProjects", "AsyncRecordings", "AsyncSandbox",
    "AsyncSandboxClient", "AsyncShell", "AsyncTerminal", "AsyncTunnel", "AsyncWatch", "AuthenticationError", "Batch",
    "Branches", "BuildError", "BuildEvent", "CancelledRemotelyError", "Cause", "ChecksumError", "Chunk",
    "ClientClosedError", "ClusterOptions", "CommandFailedError", "CommandResult", "CommandStream", "ConfigurationError",
    "ConflictError", "Connection", "DockerfileError", "EventGap", "Events", "FileEntry", "FileEvent", "FileLink",
    "FileMatch", "Files", "Group", "GroupInfo", "HoldfastError", "ImageInfo", "ImageNotFoundError", "ImagePullError",
    "Images", "InputClosedError", "Interaction", "InvalidArgumentError", "InvalidPathError", "KeyInfo", "Keys", "LimitInfo",
    "Limits", "Listener", "ListeningPort", "Lost", "NewKey", "NoSpaceError", "NotFoundError", "OutcomeUnknownError",
    "PastCommand", "PatchResult", "PauseResult", "PortUnreachableError", "PreviewUrl", "Process", "ProjectInfo", "Projects",
    "ProtocolError", "PullEvent", "QuotaError", "RecordedCommand", "RecordingInfo", "Recordings", "RemoteFileError",
    "RemoteFileExistsError", "RemoteFileNotFoundError", "RemoteIsADirectoryError", "RemoteNotADirectoryError",
    "RemotePermissionError", "RequestTooLargeError", "Sandbox", "SandboxClient", "SandboxEvent", "SandboxGoneError",
    "SandboxInfo", "SandboxLostError", "SandboxNotFoundError", "SandboxNotReadyError", "ServiceError",
    "ServiceUnavailableError", "SessionFencedError", "SessionLostError", "Shell", "ShellLostError", "SpawnError",
    "StreamCount", "Terminal", "TransferResult", "Tunnel", "UnsupportedError", "UserNotFoundError", "WaitTimeoutError",
    "Watch", "WorkingDirectoryError", "commands_of",
]  # fmt: skip

_ASYNC = {
    "AsyncAttachable": "attachable",
    "AsyncBatch": "batch",
    "AsyncBranches": "snapshots",
    "AsyncCommandStream": "process",
    "AsyncConnection": "listener",
    "AsyncEvents": "events",
    "AsyncFiles": "files",
    "AsyncGroup": "group",
    "AsyncImages": "images",
    "AsyncInput": "running",
    "AsyncInteraction": "process",
    "AsyncKeys": "tenants",
    "AsyncLifecycle": "lifecycle",
    "AsyncLimits": "tenants",
    "AsyncListener": "listener",
    "AsyncProcess": "process",
    "AsyncProjects": "tenants",
    "AsyncRecordings": "recordings",
    "AsyncRunning": "running",
    "AsyncSandbox": "sandbox",
    "AsyncSandboxClient": "client",
    "AsyncShell": "shell",
    "AsyncSnapshots": "snapshots",
    "AsyncTerminal": "process",
    "AsyncTunnel": "tunnel",
    "AsyncWatch": "watch",
}
"""Module of each class, base classes included: pickle and tracebacks look them up by this package's name."""
_HOMES = {
    **{name: f"holdfast._async.{module}" for name, module in _ASYNC.items()},
    **{name.removeprefix("Async"): f"holdfast._sync.{module}" for name, module in _ASYNC.items()},
    **dict.fromkeys(("FileEntry", "FileEvent", "FileLink", "FileMatch", "PatchResult", "TransferResult"), "holdfast._file_results"),
    **dict.fromkeys(("ActivityEvent", "EventGap", "PullEvent", "SandboxEvent"), "holdfast._event_results"),
    **dict.fromkeys(("RecordedCommand", "RecordingInfo", "commands_of"), "holdfast._recording_results"),
    **dict.fromkeys(("KeyInfo", "LimitInfo", "NewKey", "ProjectInfo"), "holdfast._tenant_results"),
    "AsyncPresent": "holdfast._transport.aio.opening",
    "BuildEvent": "holdfast._build_results",
    "ClusterOptions": "holdfast._requests",
    "Present": "holdfast._transport.threads.opening",
    "PastCommand": "holdfast._history_results",
}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name) or ("holdfast._errors" if name.endswith("Error") else "holdfast._results")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
