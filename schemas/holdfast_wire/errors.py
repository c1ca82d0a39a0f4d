"""The one error table: code → HTTP status → WebSocket close code → retryable → fault.

Owns the codes, their meaning and ``HoldfastError``, which every other exception of the project carries or extends. It
does not own presentation: the gateway renders problem documents from it, the agent ``Failed`` frames, and the SDK picks
its exception class by ``sdk_class``.

    HoldfastError
    └── ProtocolError        the peer broke PROTOCOL.md; the connection is over
"""

from __future__ import annotations

from typing import Any, Literal

from .fast_dataclass import dataclass

Fault = Literal["workload", "infrastructure", "caller"]


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table.

    ``status`` is the HTTP status, ``close_code`` the WebSocket close code (0: never closes a connection),
    ``sdk_class`` the public exception of the SDK, ``retryable`` whether the same call may succeed later unchanged,
    ``fault`` where the cause is: the caller's request, the code in the sandbox, or the service.
    """

    code: str
    status: int
    close_code: int
    sdk_class: str
    retryable: bool
    fault: Fault
    hint: str
    """What to do about the error, unless the code that raises it gives a more specific hint."""


def _table(*rows: ErrorKind) -> dict[str, ErrorKind]:
    return {row.code: row for row in rows}


_K = ErrorKind

TABLE: dict[str, ErrorKind] = _table(
    # the request itself
    _K("invalid_argument", 422, 4422, "InvalidArgumentError", False, "caller",
       "correct the field that the message names; /openapi.json has the shape of every request"),
    _K("invalid_json", 400, 0, "InvalidArgumentError", False, "caller", "send a JSON object as the body"),
    _K("invalid_quantity", 422, 0, "InvalidArgumentError", False, "caller",
       "write cpu as 2, '500m' or 0.5 and memory as '512Mi', '4Gi' or bytes"),
    _K("invalid_path", 422, 0, "InvalidPathError", False, "caller", "give a path of 1 to 4096 bytes without NUL"),
    _K("request_too_large", 413, 4413, "RequestTooLargeError", False, "caller", "send less at once, or stream it over a session"),
    _K("method_not_allowed", 405, 0, "InvalidArgumentError", False, "caller", "look at /openapi.json for the methods of this route"),
    _K("not_found", 404, 0, "NotFoundError", False, "caller", "look at /openapi.json for the routes"),
    _K("unsupported", 501, 0, "UnsupportedError", False, "caller",
       "`holdfast doctor` shows what this service supports"),
    _K("in_use", 409, 0, "ConflictError", True, "caller", "end what uses the resource, or choose another"),
    # the caller's key and rights
    _K("key_missing", 401, 4401, "AuthenticationError", False, "caller", "set HOLDFAST_API_KEY, or send the header X-API-Key"),
    _K("key_invalid", 403, 4403, "AuthenticationError", False, "caller",
       "check HOLDFAST_API_KEY; `holdfast up` writes the current one to .holdfast/env ($HOLDFAST_DATA/env)"),
    _K("scope_missing", 403, 4403, "AuthenticationError", False, "caller",
       "use a key that has the scope, or have it added to the line of this key in the keys file (scopes=…)"),
    _K("origin_refused", 403, 4403, "AuthenticationError", False, "caller",
       "list the page's origin in HOLDFAST_ALLOWED_ORIGINS of the gateway, or use the SDK"),
    _K("client_closed", 409, 0, "ClientClosedError", False, "caller", "make another client, or close this one later"),
    # sandboxes
    _K("sandbox_not_found", 404, 4404, "SandboxNotFoundError", False, "caller", "list your sandboxes with `holdfast list`"),
    _K("sandbox_exists", 409, 0, "ConflictError", False, "caller", "choose another sandbox_id, or leave it out"),
    _K("sandbox_gone", 410, 4410, "SandboxLostError", False, "infrastructure",
       "create a new sandbox; the reason states why this one ended"),
    _K("sandbox_not_ready", 409, 4409, "SandboxNotReadyError", True, "infrastructure", "wait until it is ready: GET /sandboxes/{id}/wait"),
    _K("sandbox_paused", 409, 4409, "ConflictError", False, "caller", "resume it first: `holdfast unpause`, or sandbox.resume()"),
    _K("sandbox_failed", 409, 4410, "SandboxLostError", False, "infrastructure",
       "the reason states why; create a new sandbox once that is fixed"),
    _K("image_not_found", 404, 0, "ImageNotFoundError", False, "caller",
       "`holdfast image list` shows those that are there; add it with `holdfast image pull NAME` or `holdfast image import FILE NAME`"),
    _K("image_in_use", 409, 0, "ConflictError", True, "caller", "delete the sandboxes that use it first"),
    _K("image_invalid", 422, 0, "InvalidArgumentError", False, "caller",
       "give an OCI layout, a docker or OCI archive, a root file system tar, or a root directory"),
    _K("image_pull_failed", 502, 0, "ImagePullError", True, "infrastructure",
       "the message comes from the registry: retry, or import the image with `holdfast image import`"),
    _K("quota_exceeded", 429, 0, "QuotaError", True, "caller", "delete sandboxes you no longer need, or wait"),
    _K("rate_limited", 429, 0, "QuotaError", True, "caller",
       "wait for the seconds in Retry-After; `holdfast limits` shows whose limits hold"),
    _K("overloaded", 503, 0, "ServiceUnavailableError", True, "infrastructure",
       "too many sandboxes are being created: retry after the seconds in Retry-After"),
    _K("group_not_found", 404, 0, "NotFoundError", False, "caller",
       "create a sandbox with that group, or send its first heartbeat, to begin it"),
    _K("group_lapsed", 410, 0, "SandboxLostError", False, "caller",
       "the group's lease expired and its sandboxes were deleted: start a new group"),
    _K("group_freeing", 503, 0, "ServiceUnavailableError", True, "infrastructure",
       "the sandboxes of the previous group of this name are being deleted: retry"),
    _K("no_capacity", 503, 0, "ServiceUnavailableError", True, "infrastructure",
       "ask for less cpu and memory, delete sandboxes, or retry when some have ended"),
    _K("idempotency_conflict", 422, 0, "ConflictError", False, "caller", "use a new Idempotency-Key for a different request"),
    _K("precondition_failed", 412, 0, "ConflictError", False, "caller", "read the document again, and send the change with its ETag"),
    _K("create_timeout", 504, 0, "SandboxNotReadyError", False, "infrastructure",
       "create with a longer ready_timeout_s; large images take long the first time"),
    _K("wait_timeout", 408, 0, "WaitTimeoutError", True, "caller", "repeat the request, or wait longer"),
    # the service
    _K("placement_unavailable", 503, 4503, "ServiceUnavailableError", True, "infrastructure",
       "retry after the seconds in Retry-After; open sessions continue"),
    _K("runtime_unavailable", 503, 4503, "ServiceUnavailableError", True, "infrastructure", "retry after the seconds in Retry-After"),
    _K("audit_unavailable", 503, 4503, "ServiceUnavailableError", True, "infrastructure",
       "the operator has to make room for the audit log (HOLDFAST_AUDIT), or end HOLDFAST_AUDIT_REQUIRED"),
    _K("identity_unavailable", 503, 4503, "ServiceUnavailableError", True, "infrastructure",
       "retry after the seconds in Retry-After; the operator checks HOLDFAST_OIDC_ISSUER and the way to it"),
    _K("service_unreachable", 503, 0, "ServiceUnavailableError", True, "infrastructure",
       "check that `holdfast up` runs, and that HOLDFAST_URL is its address"),
    _K("agent_unreachable", 503, 4503, "ServiceUnavailableError", True, "infrastructure", "retry; the sandbox may be starting or gone"),
    _K("agent_identity", 502, 4502, "ServiceUnavailableError", True, "infrastructure",
       "the agent of another sandbox answered at this address: retry"),
    _K("draining", 503, 1012, "ServiceUnavailableError", True, "infrastructure", "connect again; another replica will serve you"),
    _K("internal", 500, 1011, "ServiceError", True, "infrastructure",
       "this is a bug in Holdfast: look for the request's id (header X-Request-Id) in the gateway's log, and report it"),
    # the session
    _K("protocol_error", 400, 4400, "ProtocolError", False, "caller",
       "use the SDK, or follow the clause of PROTOCOL.md that the message names"),
    _K("version_unsupported", 400, 4406, "ProtocolError", False, "caller", "upgrade the older of SDK and service"),
    _K("session_fenced", 409, 4411, "SessionFencedError", False, "caller",
       "another connection attached to this session later; open a new session if you still need one"),
    _K("session_forbidden", 403, 4412, "AuthenticationError", False, "caller",
       "use the secret that this session was opened with, or open a new one"),
    _K("session_lost", 410, 4414, "SessionLostError", False, "infrastructure",
       "the session expired or its agent restarted; open a new one"),
    _K("session_limit", 429, 4429, "QuotaError", True, "caller", "close sessions or channels you no longer need"),
    # commands, shells, terminals
    _K("command_conflict", 409, 0, "ConflictError", False, "caller", "the same command id was used with other parameters; choose a new id"),
    _K("command_not_found", 404, 0, "NotFoundError", False, "caller", "give the id of a command that was started in this sandbox"),
    _K("pruned", 410, 0, "OutcomeUnknownError", False, "caller",
       "the command ran and its record was removed; choose a new command id to run it again"),
    _K("outcome_unknown", 504, 0, "OutcomeUnknownError", False, "infrastructure",
       "the command may have run; look at its effects before you run it again"),
    _K("queue_full", 429, 0, "QuotaError", True, "caller", "wait for the commands before it"),
    _K("shell_lost", 409, 0, "ShellLostError", True, "workload", "open a new shell"),
    _K("shell_unavailable", 422, 0, "UnsupportedError", False, "caller",
       "the image has neither bash nor sh: use exec with an argument list"),
    _K("input_closed", 409, 0, "InputClosedError", False, "workload",
       "write before close_stdin() and before the command ends; wait() returns its result"),
    _K("spawn_failed", 409, 0, "SpawnError", True, "workload", "wait for processes to end, or create the sandbox with more memory or pids"),
    _K("arguments_too_long", 413, 0, "ArgumentsTooLongError", False, "caller",
       "one argument or variable may have 128 KiB, all together 2 MiB: pass the rest as input or in a file"),
    _K("user_not_found", 422, 0, "UserNotFoundError", False, "caller", "name a user of the image's /etc/passwd, or a numeric uid"),
    _K("cwd_not_found", 422, 0, "WorkingDirectoryError", False, "caller",
       "give a cwd that is a directory in the sandbox, or create it first"),
    _K("cwd_forbidden", 403, 0, "WorkingDirectoryError", False, "caller", "give a cwd that the user may enter"),
    # files, archives, patches, tunnels
    _K("file_not_found", 404, 0, "RemoteFileNotFoundError", False, "caller", "list the directory to see what is there"),
    _K("file_exists", 409, 0, "RemoteFileExistsError", False, "caller", "choose another name, or ask for it to be replaced"),
    _K("permission_denied", 403, 0, "RemotePermissionError", False, "caller", "look at the owner and mode of the path"),
    _K("is_a_directory", 409, 0, "RemoteIsADirectoryError", False, "caller", "name a file in the directory"),
    _K("not_a_directory", 409, 0, "RemoteNotADirectoryError", False, "caller", "a parent in the path is a file, not a directory: stat() shows which"),
    _K("directory_not_empty", 409, 0, "RemoteFileExistsError", False, "caller", "remove the directory recursively"),
    _K("not_a_file", 409, 0, "InvalidPathError", False, "caller", "only regular files can be transferred"),
    _K("no_space", 507, 0, "NoSpaceError", False, "workload", "free space in the sandbox, or create it with more disk"),
    _K("read_only", 403, 0, "RemotePermissionError", False, "caller", "write below /tmp or the working directory"),
    _K("io_error", 500, 0, "RemoteFileError", True, "infrastructure",
       "the message comes from the operating system: retry, or check the disk of the sandbox"),
    _K("checksum_mismatch", 422, 0, "ChecksumError", True, "infrastructure", "send the data again; the target is unchanged"),
    _K("archive_invalid", 422, 0, "ArchiveError", False, "caller", "give a tar archive, whole and with names inside its own tree"),
    _K("archive_limit", 413, 0, "ArchiveError", False, "caller", "split the tree into several archives"),
    _K("port_unreachable", 502, 0, "PortUnreachableError", True, "workload", "start what listens on that port, then connect again"),
    _K("cancelled", 499, 0, "CancelledRemotelyError", False, "caller", "start the command again if it is still wanted"),
)  # fmt: skip
"""Every code of the project. A code is never reused for another meaning."""


class HoldfastError(Exception):
    """An error with a code of the table, a message, and a hint that states what to do about it.

    ``fault`` is where the cause is: ``infrastructure`` (the service or its machines; ``is_infrastructure``), ``workload`` (the code in the
    sandbox) or ``caller`` (the request). A trainer masks a rollout that ended in an infrastructure error and scores all others::

        except HoldfastError as error:
            if error.is_infrastructure:
                return None  # mask it
            raise  # score it

    ``retryable`` is whether the same call may succeed later unchanged. ``HoldfastError("text")`` has the default code of its class.

    ``detail`` holds machine-readable facts (never payloads or keys). ``reason`` names the cause, for example timeout, oom,
    evicted, preempted, node-lost, ttl, idle, heartbeat, image-pull, start-failed, unschedulable, deleted, exited.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        hint: str | None = None,
        fault: Fault | None = None,
        reason: str | None = None,
        retryable: bool | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        if message is None:
            code, message = _code_of(type(self)), code
        kind = TABLE.get(code, TABLE["internal"])
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = kind.hint if hint is None else hint
        self.fault: Fault = kind.fault if fault is None else fault
        self.reason = reason
        self.retryable = kind.retryable if retryable is None else retryable
        self.detail = detail or {}

    @property
    def is_infrastructure(self) -> bool:
        """Whether the service or its machines failed: the rollout does not measure the model, so mask it instead of scoring it."""
        return self.fault == "infrastructure"

    @property
    def kind(self) -> ErrorKind:
        """The row of the table this error belongs to."""
        return TABLE.get(self.code, TABLE["internal"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Make errors picklable and copyable, also those whose class takes other arguments."""
        system = {name: getattr(self, name, None) for name in ("errno", "strerror", "filename")} if isinstance(self, OSError) else {}
        return _revived, (type(self), self.args, {**self.__dict__, **system})

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f" — {self.hint}" if self.hint else "")

    def to_map(self) -> dict[str, Any]:
        """The error as the map that ``Failed`` and REST problems carry."""
        body: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "fault": self.fault,
            "retryable": self.retryable,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.detail:
            body["detail"] = self.detail
        return body

    @classmethod
    def from_map(cls, body: Any) -> HoldfastError:
        """Read ``to_map``'s output from an untrusted peer: every field is checked."""
        body = body if isinstance(body, dict) else {}
        code = body.get("code")
        message = body.get("message")
        hint = body.get("hint")
        fault = body.get("fault")
        reason = body.get("reason")
        retryable = body.get("retryable")
        detail = body.get("detail")
        return cls(
            code if isinstance(code, str) and code in TABLE else "internal",
            message if isinstance(message, str) else "the peer reported an error without a message",
            hint=hint if isinstance(hint, str) else None,
            fault=fault if fault in ("workload", "infrastructure", "caller") else None,
            reason=reason if isinstance(reason, str) else None,
            retryable=retryable if isinstance(retryable, bool) else None,
            detail=detail if isinstance(detail, dict) else None,
        )


def _code_of(cls: type[HoldfastError]) -> str:
    """The first code whose errors are of this class, or of one it extends."""
    codes = {kind.sdk_class: kind.code for kind in reversed(TABLE.values())}
    return next((codes[base.__name__] for base in cls.__mro__ if base.__name__ in codes), "internal")


def _revived(cls: type[HoldfastError], args: tuple[Any, ...], state: dict[str, Any]) -> HoldfastError:
    error = cls.__new__(cls, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class ProtocolError(HoldfastError):
    """The peer broke the protocol (PROTOCOL §9): this connection ends, the session may be resumed on another."""

    def __init__(self, message: str, code: str = "protocol_error") -> None:
        super().__init__(code, message)
