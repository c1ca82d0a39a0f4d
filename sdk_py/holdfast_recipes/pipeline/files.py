"""JSON-lines files of tasks, trajectories and rows: reading them, and appending so that a killed process leaves whole lines.

Owns the forms that files may have: our records, published rows, and parquet where pyarrow is installed. What the records mean is in
``core.records`` and ``swe.sources``. A line is written by one call and ends in a newline; what follows the last newline was cut off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast_recipes.core.records import from_json, from_row
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.swe.sources import RowError, SweTask, read_record, read_row

from .errors import DataError, MissingExtraError, RunInUseError

TRAJECTORIES = "trajectories.jsonl"
"""The file of a run's folder that holds its trajectories."""


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number from 1 and object of each line. Raises DataError, with the line, for what is no JSON object; a last line without its
    newline is left out, for its writer was killed."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", hint="give the path of a file that exists and can be read") from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and not _is_object(line):
                return
            if line.strip():
                yield number, _object(line, path, number)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{number}: not JSON: {error}", hint="each line must be one JSON object") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}:{number}: not a JSON object", hint="each line must be one JSON object")
    return record


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """As ``lines``, of a JSON-lines or parquet file, or of all data files of a folder (rows then count through)."""
    if path.is_dir():
        if (path / TRAJECTORIES).is_file():
            yield from lines(path / TRAJECTORIES)
            return
        files = [each for each in sorted(path.rglob("*")) if each.suffix in (".jsonl", ".parquet")]
        if not files:
            raise DataError(f"{path}: no .jsonl or .parquet file in it", hint="give a data file, a run's folder or a data set's")
        yield from enumerate((row for file in files for _, row in rows(file)), 1)
    elif path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), 1)
    else:
        yield from lines(path)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    parquet = pyarrow_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}", hint="give a parquet file") from error


def pyarrow_parquet() -> Any:
    """The module ``pyarrow.parquet``. Raises MissingExtraError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("parquet files need pyarrow", extra="recipes") from error
    return pyarrow.parquet


def trajectories(path: Path) -> Iterator[Trajectory]:
    """Trajectories of a file, a run's folder or a data set's, in our records or in published rows. Raises DataError with the line."""
    for number, row in rows(path):
        try:
            yield from_json(row) if "format" in row else from_row(row)
        except (ValueError, KeyError, TypeError) as error:
            what = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}:{number}: {what}", hint="it must be a trajectory record or a row of the published form") from error


def tasks(path: Path, source: str | None = None) -> list[SweTask]:
    """Tasks of a file: our own records and mutation rows, or rows of a named format of ``swe.sources``. Raises DataError with the line,
    also where an id occurs twice."""
    found: dict[str, SweTask] = {}
    for number, row in rows(path):
        try:
            chosen = source or ("mutation" if "format" not in row and "start_patch" in row else None)
            task = read_row(row, chosen) if chosen else read_record(row)
        except RowError as error:
            hint = "" if source else "for published rows name their format with --source"
            raise DataError(f"{path}:{number}: {error}", hint=hint) from error
        if task.task_id in found:
            raise DataError(f"{path}:{number}: the task {task.task_id} occurs twice", hint="ids must be unique in a file")
        found[task.task_id] = task
    if not found:
        raise DataError(f"{path}: no tasks in it", hint="each line must be one task")
    return list(found.values())


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write a file atomically; returns how many lines it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with partial.open("wb") as file:
            for record in records:
                file.write(encoded(record))
                count += 1
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def encoded(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"


class Journal:
    """A JSON-lines file that one process appends to; each line is on disk when ``append`` returns.

    Opening it locks it (RunInUseError while another process has it) and cuts off a last line that a killed writer did not finish.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise RunInUseError(f"{path} is being written by another process", hint="wait for it, or give another folder") from error
        self.cut_bytes = self._cut_tail()
        """The number of bytes removed as an unfinished line."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line."""
        data = memoryview(encoded(record))
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _cut_tail(self) -> int:
        size = end = os.fstat(self._fd).st_size
        while end:
            start = max(0, end - 65_536)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)
            os.fsync(self._fd)
        return size - end
