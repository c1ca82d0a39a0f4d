"""Checks of a data set or a file of trajectories, as a reader would do them: one line per problem.

Owns the rules between fields (``core.records`` checks whether a record can be read) and between the files of a data set and its manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast_recipes.core.records import from_json, from_row
from holdfast_recipes.core.trajectory import Trajectory

from .annotate import turns_with_results
from .errors import DataError
from .files import rows
from .publish import COLUMNS, MANIFEST, Totals

_TOLERANCE = 1e-9


def problems_of(run: Trajectory) -> list[str]:
    """The errors within one trajectory."""
    found = [] if run.trajectory_id and run.task_id else ["trajectory_id and task_id must not be empty"]
    turns = len(turns_with_results(run))
    if run.turns and len(run.turns) != sum(message["role"] == "assistant" for message in run.messages):
        found.append(f"{len(run.turns)} turns, but another number of assistant messages")
    found += _values(run, turns)
    if run.branch is not None and not (run.branch.tree and run.branch.turn <= turns):
        found.append(f"it shares {run.branch.turn} turns with the rollouts of the tree {run.branch.tree!r}, but has {turns}")
    if run.credited is not None:
        if run.resolved and run.branch is None:
            found.append("a resolved run has credited turns: all of its turns get loss")
        if not run.credited or list(run.credited) != sorted(set(run.credited)) or not 0 <= run.credited[0] <= run.credited[-1] < turns:
            found.append(f"credited turns must be ascending numbers below {turns}, at least one: {list(run.credited)}")
    return found + _answers(run)


def _values(run: Trajectory, turns: int) -> list[str]:
    found = []
    if run.values is None:
        return ["rises without values"] if run.rises is not None else []
    if not all(0 <= value <= 1 for value in run.values):
        found.append("a value is no probability")
    if run.value_of is None:
        found.append("values without value_of")
    elif len(run.values) - turns not in ((0, 1) if run.value_of == "before" else (0,)):
        found.append(f"{len(run.values)} values of states {run.value_of} {turns} turns")
    ends = [-1]
    for start, end in run.rises or ():
        if not ends[-1] < start < end < len(run.values):
            found.append(f"rise segments must be ordered, apart and within the values: {[start, end]}")
            break
        if any(after <= before - _TOLERANCE for before, after in zip(run.values[start:end], run.values[start + 1 : end + 1], strict=True)):
            found.append(f"values fall within the rise segment {[start, end]}")
        ends.append(end)
    return found


def _answers(run: Trajectory) -> list[str]:
    """Every tool message answers a call that was made before it."""
    asked: set[str] = set()
    for index, message in enumerate(run.messages):
        for call in message.get("tool_calls") or ():
            asked.add(str(call.get("id") or ""))
        if message["role"] == "tool" and asked - {""} and message.get("tool_call_id") not in (None, "", *asked):
            return [f"message {index} answers a call that was not made: {message['tool_call_id']}"]
    return []


def validate(path: Path, *, most: int = 100) -> list[str]:
    """Problems of a data set's folder, or of a file of rows or records, at most ``most`` and how many more; none for a sound one.

    Raises DataError for unreadable files.
    """
    manifest = path / MANIFEST
    found = list(_of_set(path, _read_manifest(manifest)) if manifest.is_file() else _of_file(path, Totals(), published=False))
    return found if len(found) <= most else [*found[:most], f"({len(found) - most} more)"]


def _read_manifest(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise DataError(f"{path}: this reads data sets of format 1")
    return manifest


def _of_set(folder: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    totals = Totals()
    listed = {str(each["path"]): each for each in manifest["files"]}
    there = {str(each.relative_to(folder)) for each in (folder / "data").iterdir()} if (folder / "data").is_dir() else set()
    yield from (f"{name}: not in the manifest" for name in sorted(there - listed.keys()))
    ids: set[str] = set()
    for name, entry in listed.items():
        if name not in there:
            yield f"{name}: missing"
            continue
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                yield f"{name}: its digest is not that of the manifest"
        before = totals.rows
        yield from _of_file(folder / name, totals, published=True, ids=ids)
        if totals.rows - before != entry["rows"]:
            yield f"{name}: {totals.rows - before} readable rows, the manifest has {entry['rows']}"
    counted = totals.to_json()
    yield from (
        f"{MANIFEST}: {key} is {manifest.get(key)!r}, counted {value!r}" for key, value in counted.items() if manifest.get(key) != value
    )


def _of_file(path: Path, totals: Totals, *, published: bool, ids: set[str] | None = None) -> Iterator[str]:
    ids = set() if ids is None else ids
    for number, row in rows(path):
        place = f"{path.name}:{number}"
        if published and (missing := [name for name in COLUMNS if name not in row]):
            yield f"{place}: columns are missing: {', '.join(missing)}"
            continue
        try:
            run = from_json(row) if "format" in row else from_row(row)
        except (ValueError, KeyError, TypeError) as error:
            yield f"{place}: cannot be read: {f'there is no field {error}' if isinstance(error, KeyError) else error}"
            continue
        totals.add(run)
        yield from (f"{place}: {problem}" for problem in problems_of(run))
        if published:
            yield from (f"{place}: {problem}" for problem in _columns(row, run))
        if run.trajectory_id in ids:
            yield f"{place}: the id {run.trajectory_id} occurs twice"
        ids.add(run.trajectory_id)


def _columns(row: Mapping[str, Any], run: Trajectory) -> Iterator[str]:
    """The columns agree with the record within ``metadata``."""
    same: dict[str, Any] = {
        "instance_id": run.task_id,
        "repo": run.repo,
        "teacher": run.policy.name,
        "harness": run.harness.name,
        "value_curve": None if run.values is None else list(run.values),
        "value_of": run.value_of,
        "credited_turns": None if run.credited is None else list(run.credited),
        "rise_segments": None if run.rises is None else [list(each) for each in run.rises],
    }
    same["resolved"] = run.resolved
    lost = {
        (name, index)
        for index, (column, message) in enumerate(zip(row["messages"], run.messages, strict=False))
        for name, value in message.items()
        if value not in (None, "", [], ()) and column.get(name) in (None, "", [])
    }
    for name in sorted({name for name, _ in lost}):
        places = sorted(index for each, index in lost if each == name)
        what = "the thoughts" if name == "reasoning_content" else f"the field {name}"
        yield (
            f"column messages lacks {what} of {len(places)} messages (the first is {places[0]}), which the record has: "
            "whoever trains on the column trains without them"
        )
    if len(row["messages"]) != len(run.messages):
        yield f"column messages has {len(row['messages'])} messages, the record {len(run.messages)}"
    yield from (f"column {name} is {row[name]!r}, the record has {value!r}" for name, value in same.items() if row[name] != value)
