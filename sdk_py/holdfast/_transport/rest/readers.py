"""What REST answers mean: jobs, images and directory entries as the types of the SDK.

Pure. Does not own the types' own readers (``_results``) nor the requests (``_async.rest``).
"""

from __future__ import annotations

from typing import Any

from holdfast._errors import error
from holdfast._results import STDERR, STDOUT, Cause, CommandResult, FileEntry, ImageInfo, StreamCount, read_cause, take, take_all

_JOB_FIELDS = (
    ("exit_code", (int,), None),
    ("stdout", (str,), ""),
    ("stderr", (str,), ""),
    ("started_at", (int, float), 0.0),
    ("completed_at", (int, float), 0.0),
    ("timed_out", (bool,), False),
    ("truncated", (bool,), False),
    ("signal", (str,), None),
    ("error", (str,), None),
)
_STREAM_FIELDS = (("seen", (int,), 0), ("dropped", (int,), 0), ("sha256", (str,), ""))


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
    nodes = take(row, "nodes", dict, default={})
    return ImageInfo(
        name=take(row, "name", str, default=""),
        digest=take(row, "digest", str, default=""),
        size_bytes=take(row, "size_bytes", int, default=0),
        created=take(row, "created", str, int, float),
        nodes_ready=take(nodes, "ready", int),
        nodes_wanted=take(nodes, "wanted", int),
    )


def _seconds(text: object) -> float:
    """Seconds since the epoch of a listing's UTC time; 0 where there is none."""
    from datetime import UTC, datetime

    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def job_result(job: dict[str, Any], command_id: str) -> CommandResult:
    exit_code, stdout, stderr, started, completed, timed_out, truncated, signal, why = take_all(job, _JOB_FIELDS)
    if exit_code is None:
        raise error("outcome_unknown", f"the job ended without an exit code: {why or 'no reason given'}", detail={"command_id": command_id})
    cause = read_cause(job.get("cause"))
    if cause is None and timed_out:
        cause = Cause("workload", "timeout", why or "the command ran out of time")
    return CommandResult(
        exit_code=exit_code,
        stdout_bytes=stdout.encode(),
        stderr_bytes=stderr.encode(),
        duration_s=max(float(completed) - float(started), 0.0) if started and completed else 0.0,
        command_id=command_id,
        timed_out=timed_out,
        truncated=truncated,
        signal=signal,
        cause=cause,
        streams=_stream_counts(job.get("streams")),
    )


def _stream_counts(counts: object) -> dict[int, StreamCount]:
    """What a job reports of its streams; nothing where it reports none."""
    if not isinstance(counts, dict):
        return {}
    rows = take_all(counts, (("stdout", (dict,), {}), ("stderr", (dict,), {})))
    return {STDOUT: StreamCount(*take_all(rows[0], _STREAM_FIELDS)), STDERR: StreamCount(*take_all(rows[1], _STREAM_FIELDS))}
