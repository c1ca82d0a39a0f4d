"""Readers of task rows: SWE-bench, SWE-rebench and its V2, Scale-SWE, SWE-smith, and our own mutation tasks → ``SweTask`` (A6).

Owns the meaning of each column. In four of the formats ``patch`` is the fix; in SWE-smith it is the *bug*, and the fix is its reverse.
What a policy may see is ``prompt`` alone: patches and tests are for the sandbox and the grader. The pipeline downloads rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast_recipes.core import diffs

from .images import image_of, swebench_image

Row = Mapping[str, Any]


class RowError(ValueError):
    """A row lacks a field, or a field has a form that its format does not allow."""


@dataclass(frozen=True, slots=True)
class SweTask:
    """A repository in a start state, an issue, and the tests that decide.

    Start state: the image, then ``archives`` (SHA-256 of tar files, unpacked beside the work directory), then ``start_commands``, then
    ``start_patch``. ``gold_patch`` turns the start state into a solved one. ``split`` is the purpose of the task.
    ``test_patch`` or ``test_script`` (a file's text) brings the tests, only when grading. ``test_commands`` empty: the grader's default.
    """

    task_id: str
    source: str
    repo: str
    image: str
    prompt: str
    gold_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    workdir: str = "/testbed"
    base_commit: str = ""
    language: str = "python"
    version: str = ""
    hints: str = ""
    start_commands: tuple[str, ...] = ()
    start_patch: str = ""
    test_patch: str = ""
    test_script: str = ""
    test_commands: tuple[str, ...] = ()
    log_parser: str = ""
    archives: tuple[str, ...] = ()
    split: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record of ``schemas/recipes/task.schema.json``."""
        fields = asdict(self)
        start: dict[str, Any] = {"commands": list(self.start_commands), "patch": self.start_patch}
        start |= {"archives": list(self.archives)} if self.archives else {}
        graded = ("gold_patch", "test_patch", "test_script", "fail_to_pass", "pass_to_pass", "log_parser")
        grading = {"kind": "tests", "commands": list(self.test_commands)} | {key: _listed(fields[key]) for key in graded}
        shown = ("task_id", "source", "image", "workdir", "repo", "base_commit", "language", "version", "prompt", "hints")
        more = {"split": self.split} if self.split else {}
        return {"format": 1, "domain": "swe"} | more | {key: fields[key] for key in shown} | {"start": start, "grading": grading}


def swe_bench(row: Row) -> SweTask:
    """SWE-bench (Verified, Multilingual): the image is at the base commit, unless named it follows from the instance. Newer rows bring the
    script of the evaluation and the name of the parser."""
    name = _text(row, "instance_id")
    return SweTask(
        **_common(row, "swe_bench"),
        image=image_of(row) or swebench_image(name),
        gold_patch=_text(row, "patch"),
        test_patch=_text(row, "test_patch"),
        base_commit=_text(row, "base_commit"),
        log_parser=str(row.get("log_parser") or ""),
        test_commands=(script,) if (script := str(row.get("eval_script") or "")) else (),
    )


def swe_gym(row: Row) -> SweTask:
    """SWE-Gym: the columns of SWE-bench, with images of its own."""
    image = f"docker.io/xingyaoww/sweb.eval.x86_64.{_text(row, 'instance_id').lower().replace('__', '_s_')}:latest"
    return replace(swe_bench({**row, "image_name": image_of(row) or image}), source="swe_gym")


def swe_rebench(row: Row) -> SweTask:
    """SWE-rebench: as SWE-bench, with an image of its own and ``install_config`` for the test command."""
    config = _config(row)
    return SweTask(
        **_common(row, "swe_rebench"),
        image=_image(row),
        gold_patch=_text(row, "patch"),
        test_patch=_text(row, "test_patch"),
        base_commit=_text(row, "base_commit"),
        test_commands=_commands(config),
        log_parser=str(config.get("log_parser") or ""),
    )


def swe_rebench_v2(row: Row) -> SweTask:
    """SWE-rebench V2: 20 languages, work directory named after the repository, its own parser per task."""
    config = _config(row)
    return SweTask(
        **_common(row, "swe_rebench_v2"),
        image=_image(row),
        gold_patch=_text(row, "patch"),
        test_patch=_text(row, "test_patch"),
        base_commit=str(row.get("base_commit") or ""),
        workdir="/" + _text(row, "repo").rpartition("/")[2],
        test_commands=_commands(config),
        log_parser=str(config.get("log_parser") or ""),
    )


def scale_swe(row: Row) -> SweTask:
    """Scale-SWE: ``pre_commands`` on entry, the failing tests as a patch or as the text of a file."""
    owner, repo = str(row.get("user") or ""), _text(row, "repo")
    fields = _common(row, "scale_swe")
    fields["repo"] = f"{owner}/{repo}" if owner and "/" not in repo else repo
    return SweTask(
        **fields,
        image=_image(row),
        workdir=_text(row, "workdir"),
        gold_patch=_text(row, "patch"),
        test_patch=str(row.get("f2p_patch") or ""),
        test_script=str(row.get("f2p_script") or ""),
        base_commit=str(row.get("parent_commit") or ""),
        start_commands=_strings(row.get("pre_commands")),
    )


def swe_smith(row: Row) -> SweTask:
    """SWE-smith: ``patch`` breaks the program. It makes the start state, and its reverse is the solution."""
    bug = _text(row, "patch")
    try:
        gold = diffs.reverse(bug)
    except diffs.DiffError as error:
        raise RowError(f"{row.get('instance_id')}: {error}") from error
    return SweTask(
        **_common(row, "swe_smith"), image=_image(row), start_patch=bug, gold_patch=gold, base_commit=str(row.get("base_commit") or "")
    )


def read_record(record: Row) -> SweTask:
    """The task of ``to_json``. Raises RowError for a record of another format or domain, or one that lacks a field."""
    if record.get("format") != 1 or record.get("domain") != "swe":
        raise RowError(f"not a task record of format 1 and domain swe: {record.get('format')!r}, {record.get('domain')!r}")
    start, grading = record.get("start") or {}, record.get("grading") or {}
    if not isinstance(start, Mapping) or not isinstance(grading, Mapping):
        raise RowError(f"{record.get('task_id')}: start and grading must be objects")
    if not (fail_to_pass := _strings(grading.get("fail_to_pass"))):
        raise RowError(f"{record.get('task_id')}: grading.fail_to_pass is empty, so nothing could show a solution")
    optional = ("repo", "base_commit", "version", "hints")
    return SweTask(
        **{key: _text(record, key, "task_id") for key in ("task_id", "source", "image", "prompt", "workdir")},
        **{key: str(record.get(key) or "") for key in optional},
        language=str(record.get("language") or "python"),
        start_commands=_strings(start.get("commands")),
        start_patch=str(start.get("patch") or ""),
        fail_to_pass=fail_to_pass,
        pass_to_pass=_strings(grading.get("pass_to_pass")),
        test_commands=_strings(grading.get("commands")),
        archives=_strings(start.get("archives")),
        split=str(record.get("split") or ""),
        **{key: str(grading.get(key) or "") for key in ("gold_patch", "test_patch", "test_script", "log_parser")},
    )


def mutation(row: Row) -> SweTask:
    """Tasks of our own factory: SWE-bench's columns, with ``start_patch`` (the bug) and the ``archives`` of the start state beside them."""
    return SweTask(
        **_common(row, "mutation"),
        image=_image(row),
        gold_patch=_text(row, "patch"),
        base_commit=str(row.get("base_commit") or ""),
        start_patch=_text(row, "start_patch"),
        archives=_strings(row.get("archives")),
        test_commands=_commands(_config(row)),
        log_parser="junit",
        split=str(row.get("split") or ""),
    )


READERS: Mapping[str, Callable[[Row], SweTask]] = {
    "swe_bench": swe_bench,
    "swe_gym": swe_gym,
    "swe_rebench": swe_rebench,
    "swe_rebench_v2": swe_rebench_v2,
    "scale_swe": scale_swe,
    "swe_smith": swe_smith,
}
"""Of the published formats. ``read_row`` reads our own, ``mutation``, too."""


def read_row(row: Row, source: str) -> SweTask:
    """A row of a named format. Raises RowError, with the row's id where it has one."""
    readers = {**READERS, "mutation": mutation}
    if source not in readers:
        raise RowError(f"unknown format {source!r}; there are {sorted(readers)}")
    return readers[source](row)


def _common(row: Row, source: str) -> dict[str, Any]:
    fail_to_pass = _strings(row.get("FAIL_TO_PASS"))
    if not fail_to_pass:
        raise RowError(f"{row.get('instance_id')}: FAIL_TO_PASS is empty, so nothing could show a solution")
    return {
        "task_id": _text(row, "instance_id"),
        "source": source,
        "repo": _text(row, "repo"),
        "prompt": _text(row, "problem_statement"),
        "fail_to_pass": fail_to_pass,
        "pass_to_pass": _strings(row.get("PASS_TO_PASS")),
        "version": str(row.get("version") or ""),
        "hints": str(row.get("hints_text") or ""),
        "language": str(row.get("language") or "python").lower(),
    }


def _text(row: Row, key: str, name: str = "instance_id") -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise RowError(f"{row.get(name)}: {key} is missing")
    return value


def _image(row: Row) -> str:
    image = image_of(row)
    if not image:
        raise RowError(f"{row.get('instance_id')}: the row names no image")
    return image


def _strings(value: Any) -> tuple[str, ...]:
    """A list, or the JSON text of one, as several sets store it; a plain text is one entry."""
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith("["):
            return (value,) if text else ()
        try:
            value = json.loads(text)
        except ValueError as error:
            raise RowError(f"not a list: {value[:80]!r}") from error
    if value is None:
        return ()
    if not isinstance(value, Sequence) and not hasattr(value, "tolist"):
        raise RowError(f"not a list: {value!r}")
    entries = value.tolist() if hasattr(value, "tolist") else value  # parquet readers give arrays
    if not all(isinstance(entry, str) for entry in entries):
        raise RowError("a list of names holds something else")
    return tuple(entries)


def _config(row: Row) -> Mapping[str, Any]:
    config = row.get("install_config") or {}
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise RowError(f"{row.get('instance_id')}: install_config is not JSON") from error
    if not isinstance(config, Mapping):
        raise RowError(f"{row.get('instance_id')}: install_config is no object")
    return config


def _commands(config: Mapping[str, Any]) -> tuple[str, ...]:
    return _strings(config.get("test_cmd") or config.get("test_cmds"))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
