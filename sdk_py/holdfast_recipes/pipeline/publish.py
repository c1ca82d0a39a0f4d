"""A data set on disk: data files with the published columns and ours, a card made from counts, and the rules for its files (A2.2, C8).

Owns files, manifest and card. Parquet needs pyarrow (the extra ``recipes``); JSON lines need nothing. Rows are those of ``core.records``.
``validate`` reads a data set as a user would, and lists its errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from holdfast_recipes.core.credit import segment_lengths
from holdfast_recipes.core.records import MESSAGE_COLUMNS, to_row
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.core.values import is_inverted_u

from .annotate import turns_with_results
from .errors import DataError, SettingError
from .files import encoded, pyarrow_parquet

MANIFEST = "manifest.json"
CARD = "README.md"
ROWS_PER_FILE = 5_000
_ROW_GROUP = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Form = Literal["parquet", "jsonl"]


@dataclass(slots=True)
class Totals:
    """The counts of a card, updated run by run."""

    lines: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    repos: set[str] = field(default_factory=set)
    runs: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    credited: int = 0
    credited_of: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    curves: list[int] = field(default_factory=lambda: [0, 0])
    segments: Counter[int] = field(default_factory=Counter)

    def add(self, run: Trajectory) -> None:
        turns = len(turns_with_results(run))
        self.lines.setdefault((run.source, run.policy.name, run.harness.name), [0, 0])[not run.resolved] += 1
        self.tasks.add(run.task_id)
        self.repos |= {run.repo} - {""}
        self.runs[run.run] += 1
        self.turns += turns
        if run.credited is not None:
            self.credited += len(run.credited)
            self.credited_of += turns
        if run.values is not None and not run.resolved:
            self.curves = [self.curves[0] + 1, self.curves[1] + is_inverted_u(run.values)]
            self.segments += segment_lengths([run.rises or ()])
        if run.tokens is not None:
            self.tokens = [self.tokens[0] + 1, self.tokens[1] + len(run.tokens.ids)]

    @property
    def rows(self) -> int:
        return sum(map(sum, self.lines.values()))

    @property
    def resolved(self) -> int:
        return sum(resolved for resolved, _ in self.lines.values())

    def to_json(self) -> dict[str, Any]:
        fields = ("source", "teacher", "harness", "resolved", "unresolved")
        return {
            **dict(zip(("rows", "resolved", "unresolved"), (self.rows, self.resolved, self.rows - self.resolved), strict=True)),
            "tasks": len(self.tasks),
            "repositories": len(self.repos),
            "mean_turns": round(self.turns / self.rows, 2) if self.rows else None,
            "mean_tokens": round(self.tokens[1] / self.tokens[0], 1) if self.tokens[0] else None,
            "credited_turns": self.credited,
            "turns_of_unresolved": self.credited_of,
            "value_curves": self.curves[0],
            "inverted_u_curves": self.curves[1],
            "rise_segments": {str(steps): count for steps, count in sorted(self.segments.items())},
            "by_source": [dict(zip(fields, (*key, *counts), strict=True)) for key, counts in self.lines.items()],
            "runs": dict(sorted(self.runs.items())),
        }


@dataclass(frozen=True, slots=True)
class About:
    """The content of the card besides counts. ``dropped`` is from the curator, ``collected`` is the number of its runs; both are read
    after all rows are written. ``settings`` are written unchanged."""

    name: str
    licence: str = ""
    description: str = ""
    collected: int | Callable[[], int] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingError(f"a data set's name must consist of letters, digits, dots, underscores and dashes, not {self.name!r}")


def publish(
    runs: Iterable[Trajectory], folder: Path, about: About, *, form: Form = "parquet", rows_per_file: int = ROWS_PER_FILE
) -> dict[str, Any]:
    """Write a data set into a new folder, completely or with no effect; returns its manifest. Raises DataError where the folder exists or
    nothing is left to publish, MissingExtraError for parquet without pyarrow.
    """
    if rows_per_file < 1:
        raise SettingError(f"a file must have at least one row, not {rows_per_file}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty", hint="give a new folder: a data set is never changed")
    if form == "parquet":
        pyarrow_parquet()
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    (partial / "data").mkdir(parents=True)
    try:
        totals = Totals()
        files = list(_written(_counted(runs, totals), partial / "data", form, rows_per_file))
        if not totals.rows:
            raise DataError(f"no run is left to publish; dropped were: {_dropped(about.dropped)}", hint="look at the filters' settings")
        manifest = {"format": 1, "name": about.name, "licence": about.licence, "form": form, **totals.to_json()}
        manifest |= {
            "collected": about.collected() if callable(about.collected) else about.collected,
            "dropped": dict(about.dropped),
            "settings": dict(about.settings),
        }
        manifest["files"] = [{"path": f"data/{path.name}", "rows": count, "sha256": _digest(path)} for path, count in files]
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        (partial / CARD).write_text(card(manifest, about.description))
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _counted(runs: Iterable[Trajectory], totals: Totals) -> Iterator[dict[str, Any]]:
    for run in runs:
        totals.add(run)
        yield to_row(run)


def _written(rows: Iterator[dict[str, Any]], folder: Path, form: Form, per_file: int) -> Iterator[tuple[Path, int]]:
    number = 0
    first = next(rows, None)
    while first is not None:
        path = folder / f"train-{number:05d}.{form}"
        writer = _ParquetFile(path) if form == "parquet" else _LinesFile(path)
        count = 0
        while first is not None and count < per_file:
            writer.add(first)
            count += 1
            first = next(rows, None)
        writer.close()
        yield path, count
        number += 1


class _LinesFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def add(self, row: Mapping[str, Any]) -> None:
        self._file.write(encoded(row))

    def close(self) -> None:
        self._file.close()


class _ParquetFile:
    def __init__(self, path: Path) -> None:
        self._schema = arrow_schema()
        self._writer = pyarrow_parquet().ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow

        if not self._rows:
            return
        try:
            table = pyarrow.Table.from_pylist(self._rows, schema=self._schema)
        except UnicodeEncodeError:  # half of a surrogate pair: a model may write one, no file can hold it
            table = pyarrow.Table.from_pylist([_sound(row) for row in self._rows], schema=self._schema)
        self._writer.write_table(table)
        self._rows = []


def _sound(value: Any) -> Any:
    """The value with surrogate pairs joined, and U+FFFD for halves."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {key: _sound(item) for key, item in value.items()}
    return [_sound(item) for item in value] if isinstance(value, list) else value


_CALL = {"id": "string", "type": "string", "function": {"name": "string", "arguments": "string"}}
_TYPES: dict[str, Any] = {
    "tools": "string",
    "messages": [{name: [_CALL] if name == "tool_calls" else "string" for name in MESSAGE_COLUMNS}],
    "metadata": "string",
    **dict.fromkeys(("instance_id", "repo", "teacher", "harness"), "string"),
    **dict.fromkeys(("resolved",), "bool"),
    "value_curve": ["float64"],
    "value_of": "string",
    "rise_segments": [["int64"]],
    "credited_turns": ["int64"],
    "cause": "string",
    "holdfast_run": "string",
}
"""Types of the columns, those of the published set and then ours: a name, [element] of a list, or {field: type} of a structure."""
COLUMNS = tuple(_TYPES)


def arrow_schema() -> Any:
    """The types of the columns as pyarrow has them."""
    pyarrow_parquet()
    import pyarrow as pa

    plain = {"string": pa.string(), "bool": pa.bool_(), "float64": pa.float64(), "int64": pa.int64()}

    def made(kind: Any) -> Any:
        if isinstance(kind, str):
            return plain[kind]
        if isinstance(kind, list):
            return pa.list_(made(kind[0]))
        return pa.struct([(name, made(each)) for name, each in kind.items()])

    return pa.schema([(name, made(kind)) for name, kind in _TYPES.items()])


def card(manifest: Mapping[str, Any], description: str = "") -> str:
    """The data card: front matter that hubs read, then tables of counts."""
    extension = "parquet" if manifest["form"] == "parquet" else "jsonl"
    front = [
        "---",
        f"license: {manifest['licence'] or 'unknown'}",
        f"pretty_name: {manifest['name']}",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        f"    path: data/*.{extension}",
        "dataset_info:",
        "  features:",
        *_features(_TYPES, "  "),
        "---",
    ]
    by_source = [[*(row[key] or "–" for key in ("source", "teacher", "harness")), *_numbers(row)] for row in manifest["by_source"]]
    whole = ["**all**", "", "", *_numbers(manifest)]
    facts = [
        ("rows", manifest["rows"]),
        ("tasks", manifest["tasks"]),
        ("repositories", manifest["repositories"]),
        ("turns of a run, mean", manifest["mean_turns"]),
        ("tokens of a run, mean", manifest["mean_tokens"]),
        ("turns of unresolved runs with loss", f"{manifest['credited_turns']} of {manifest['turns_of_unresolved']}"),
        ("value curves that rise, then fall", f"{manifest['inverted_u_curves']} of {manifest['value_curves']}"),
        ("rise segments, median steps", _median(manifest["rise_segments"])),
    ]
    parts = ["\n".join(front), f"# {manifest['name']}"]
    parts += [description] if description else []
    parts.append("Trajectories of agents in Holdfast sandboxes, one row each. Every count below is made from the rows.")
    parts += ["## Runs", _table(("source", "teacher", "harness", "resolved", "unresolved", "total"), [*by_source, whole])]
    parts += ["## Size", _table(("what", "count"), [[name, value] for name, value in facts if value is not None])]
    if manifest["dropped"]:
        rows = [[name, count] for name, count in manifest["dropped"].items()]
        head = f"Of {manifest['collected']} collected runs" if manifest["collected"] is not None else "Of the collected runs"
        parts += [
            "## Filters",
            f"{head}, in this order; a run is counted by the first filter that drops it.",
            _table(("filter", "dropped"), rows),
        ]
    if manifest["settings"]:
        parts += ["## Settings", _table(("setting", "value"), [[name, value] for name, value in sorted(manifest["settings"].items())])]
    parts += ["## Columns", _COLUMNS_TEXT, "## Checking", f"`holdfast recipes validate FOLDER` reads the files against `{MANIFEST}`."]
    return "\n\n".join(parts) + "\n"


_COLUMNS_TEXT = """`tools` (JSON), `messages` (role, content, tool_call_id, tool_calls) and `metadata` (JSON with `verify_status` and, under
`holdfast`, the whole record) are those of the published set; a message also has `reasoning_content`, the thought of the turn.
`value_curve` holds one value per turn (`value_of` after), or of each state with the final one last (before). `credited_turns` are the
turns that get loss: null for a resolved run, which gets it on all. `rise_segments` index `value_curve`."""


def _features(types: Mapping[str, Any], indent: str) -> list[str]:
    """The types of the columns as the package ``datasets`` reads them from a card. Without them it takes the type of a column from the
    first rows, and a file of JSON lines that begins with resolved runs, whose credit columns are null, cannot be loaded."""
    lines = []
    for name, kind in types.items():
        lines += [f"{indent}- name: {name}", *_feature(kind, f"{indent}  ")]
    return lines


def _feature(kind: Any, indent: str) -> list[str]:
    if isinstance(kind, str):
        return [f"{indent}dtype: {kind}"]
    if isinstance(kind, Mapping):
        return [f"{indent}struct:", *_features(kind, indent)]
    (item,) = kind
    if isinstance(item, str):
        return [f"{indent}list: {item}"]
    return [f"{indent}list:", *(_features(item, indent) if isinstance(item, Mapping) else _feature(item, f"{indent}  "))]


def _median(counts: Mapping[str, int]) -> float | None:
    steps = [int(length) for length, count in counts.items() for _ in range(count)]
    return median(steps) if steps else None


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [row["resolved"], row["unresolved"], row["resolved"] + row["unresolved"]]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def _dropped(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in dropped.items() if count) or "nothing came in"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
