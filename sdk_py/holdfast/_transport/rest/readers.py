"""Converts REST answers (jobs, images, files) to the types of the SDK, and a command to the request of REST.

Pure. Does not own the readers of single types (``_results``) or the requests (``_async.rest``).
"""

from __future__ import annotations

from typing import Any

from holdfast._arguments import Bound, given
from holdfast._errors import ServiceError, UnsupportedError, error
from holdfast._file_results import FileEntry

from holdfast._results import (  # isort: skip
    STDERR, STDOUT, Cause, CommandResult, Fields, ImageInfo, Lost, SandboxInfo, StreamCount, read_cause, read_not_executed, take,
    take_all,
)  # fmt: skip

_IMAGE_FIELDS: Fields = (
    ("name", (str,), ""), ("digest", (str,), ""), ("size_bytes", (int,), 0), ("created", (str, int, float), None), ("nodes", (dict,), {}),
)  # fmt: skip
_LOST_FIELDS: Fields = (("kind", (str,), ""), ("name", (str,), ""), ("reason", (str,), ""))
_STREAM_FIELDS = (("seen", (int,), 0), ("dropped", (int,), 0), ("sha256", (str,), ""))


def ready_info(body: dict[str, Any], waited_s: float) -> SandboxInfo:
    """The record, if the sandbox is ready. Raises the typed error if it is not or has failed."""
    info = SandboxInfo.read(body)
    if info.status == "failed":
        raise error("sandbox_failed", info.status_message or "the sandbox failed to start", reason=info.reason, fault=info.fault)
    if not info.ready:
        raise error("create_timeout", f"sandbox {info.sandbox_id} is not ready after {waited_s:g} s")
    return info


def file_content(body: dict[str, Any]) -> bytes:
    """The content of a file."""
    import base64
    import binascii

    try:
        return base64.b64decode(take(body, "content", str, default=""), validate=True)
    except binascii.Error:
        raise ServiceError("internal", "the service sent file content that is not base64") from None


def file_entries(path: str, rows: list[Any]) -> list[FileEntry]:
    """A directory's entries, without modes: REST does not report them."""
    base = path.rstrip("/")
    return [
        FileEntry(
            name=str(row.get("name", "")),
            path=f"{base}/{row.get('name', '')}",
            type="directory" if row.get("type") == "directory" else "file",
            size=take(row, "size", int, default=0),
            mode=0,
            mtime=_seconds(row.get("modified")),
        )
        for row in rows
        if isinstance(row, dict)
    ]


def image_info(row: dict[str, Any]) -> ImageInfo:
    """One image of the service's store."""
    *about, nodes = take_all(row, _IMAGE_FIELDS)
    counts = take_all(nodes, (("ready", (int,), None), ("wanted", (int,), None)))
    return ImageInfo(*about, *counts, *take_all(row, (("shared", (bool,), True), ("parent", (str,), None))))


def lost_things(body: dict[str, Any]) -> list[Lost]:
    """What an answer lists as lost."""
    rows = take(body, "lost", list, default=[])
    return [Lost(*take_all(row, _LOST_FIELDS)) for row in rows if isinstance(row, dict)]


def _seconds(text: object) -> float:
    """Seconds since the epoch for a listing's UTC time; 0 if it is missing."""
    from datetime import UTC, datetime

    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def exec_body(params: dict[str, Any], data: bytes | None, limit: int) -> dict[str, Any]:
    """The request for a command, from the parameters of its channel. Raises ``UnsupportedError`` for options that need a session."""
    for needed, what in (
        ("spool" in params or "spool_bytes" in params, "commands over REST cannot choose a spool"),
        (data is not None, "commands over REST take no input"),
        ("stderr" in params or isinstance(limit, Bound), "commands over REST keep the beginning of two streams"),
        (isinstance(params.get("cwd"), bytes), "a directory that is not UTF-8 needs a session"),
    ):
        if needed:
            raise UnsupportedError("unsupported", what, hint="use a session (WebSocket)")
    return given(
        command=params.get("argv") or params.get("script"),
        timeout_seconds=params.get("timeout_s"),
        login_shell=params.get("login"),
        **{name: params.get(name) for name in ("cwd", "env", "user", "outlive")},
    )


def job_result(job: dict[str, Any], command_id: str) -> CommandResult:
    exit_code, why = take(job, "exit_code", int), take(job, "error", str)
    if exit_code is None:
        raise error("outcome_unknown", f"the job ended without an exit code: {why or 'no reason given'}", detail={"command_id": command_id})
    started, completed = (float(take(job, name, int, float, default=0.0)) for name in ("started_at", "completed_at"))
    cause, timed_out = read_cause(job.get("cause")), take(job, "timed_out", bool, default=False)
    if cause is None and timed_out:
        cause = Cause("workload", "timeout", why or "the command exceeded its time limit")
    return CommandResult(
        exit_code=exit_code,
        stdout_bytes=take(job, "stdout", str, default="").encode(),
        stderr_bytes=take(job, "stderr", str, default="").encode(),
        duration_s=max(completed - started, 0.0) if started and completed else 0.0,
        command_id=command_id,
        timed_out=timed_out,
        truncated=take(job, "truncated", bool, default=False),
        late=take(job, "late", bool, default=False),
        not_executed=read_not_executed(take(job, "not_executed", str)),
        signal=take(job, "signal", str),
        cause=cause,
        streams=_stream_counts(job.get("streams")),
    )


def _stream_counts(counts: object) -> dict[int, StreamCount]:
    """The job's counts of its streams; empty if it reports none."""
    if not isinstance(counts, dict):
        return {}
    rows = take_all(counts, (("stdout", (dict,), {}), ("stderr", (dict,), {})))
    return {STDOUT: StreamCount(*take_all(rows[0], _STREAM_FIELDS)), STDERR: StreamCount(*take_all(rows[1], _STREAM_FIELDS))}
