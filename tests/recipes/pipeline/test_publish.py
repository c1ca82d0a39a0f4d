"""Data sets on disk: parquet and JSON lines give the same runs back, the card counts, and the validator finds what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from holdfast_recipes.core.records import to_json, to_row
from holdfast_recipes.core.trajectory import PolicyName, Tokens, Trajectory
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.errors import DataError, MissingExtraError, SettingError
from holdfast_recipes.pipeline.publish import About, Form, publish
from holdfast_recipes.pipeline.validate import problems_of, validate

from tests.recipes.pipeline.made import made

RISEN: dict[str, Any] = {"values": (0.4, 0.5, 0.1), "value_of": "after", "rises": ((0, 1),), "credited": (1,)}


def runs() -> list[Trajectory]:
    return [
        made("a", resolved=True, tokens=Tokens((1, 2, 3), (0, 1, 1), (0.0, -0.5, -0.25))),
        made("b", **RISEN),
        made("c", 5, resolved=True, policy=PolicyName("other|one"), repo="x/y", reason="été 😀 \x00"),
    ]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_half_a_surrogate_pair_stops_nothing(form: Form, tmp_path: Path) -> None:
    message = {"role": "user", "content": "a \ud800 b \ud83d\ude00"}
    publish([made("a", resolved=True, messages=(message, *made().messages[2:]))], tmp_path / "set", About("set"), form=form)
    content = next(iter(files.trajectories(tmp_path / "set"))).messages[0]["content"]
    assert content in ("a \ud800 b 😀", "a \ufffd b 😀")


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_what_is_published_comes_back(form: Form, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    manifest = publish(runs(), folder, About("set", "apache-2.0"), form=form, rows_per_file=2)
    assert [each["rows"] for each in manifest["files"]] == [2, 1]
    assert list(files.trajectories(folder)) == runs()
    assert validate(folder) == []
    assert not [each for each in tmp_path.iterdir() if each.name != "set"]


def test_columns_have_the_thoughts_and_the_validator_says_where_they_are_lost(tmp_path: Path) -> None:
    row = to_row(made("a", resolved=True))
    assert [message["reasoning_content"] for message in row["messages"] if message["role"] == "assistant"] == [
        f"thought {n}" for n in range(3)
    ]
    folder = tmp_path / "set"
    publish([made("a", resolved=True)], folder, About("set"), form="jsonl")
    data = folder / "data" / "train-00000.jsonl"
    row = json.loads(data.read_text())
    row["metadata"] = json.dumps(json.loads(row["metadata"]) | {"messages": made().messages})
    for message in row["messages"]:
        del message["reasoning_content"]  # as data sets were before the column was there
    data.write_text(json.dumps(row) + "\n")
    assert any("column messages lacks the thoughts of 3 messages (the first is 2)" in each for each in validate(folder))


def test_a_field_that_the_columns_cannot_hold_is_named(tmp_path: Path) -> None:
    messages = ({"role": "user", "content": "x", "name": "reviewer"}, *made().messages[2:])
    publish([made("a", resolved=True, messages=messages)], tmp_path / "set", About("set"))
    assert [each for each in validate(tmp_path / "set") if "lacks the field name" in each]


def test_the_columns_of_the_published_set_and_ours(tmp_path: Path) -> None:
    publish(runs(), tmp_path / "set", About("set"))
    table = pyarrow.parquet.read_table(tmp_path / "set" / "data" / "train-00000.parquet")
    assert set(table.column_names) == set(to_row(made()))
    row = table.to_pylist()[1]
    assert json.loads(row["metadata"])["verify_status"] == "unresolved"
    assert json.loads(row["tools"])[0]["function"]["name"] == "bash"
    assert row["messages"][2]["tool_calls"][0]["function"]["name"] == "bash"
    assert (row["value_curve"], row["rise_segments"], row["credited_turns"]) == ([0.4, 0.5, 0.1], [[0, 1]], [1])
    assert table.to_pylist()[0]["value_curve"] is None


def test_the_card_says_what_is_in_it(tmp_path: Path) -> None:
    about = About("my-set", "mit", "For a test.", 10, {"too_long": 7, "no_rise": 0}, {"eps": 0.05})
    publish(runs(), tmp_path / "set", about)
    text = (tmp_path / "set" / "README.md").read_text()
    for line in (
        "license: mit",
        "    path: data/*.parquet",
        "For a test.",
        "| swe_rebench | teacher | mini | 1 | 1 | 2 |",
        "| swe_rebench | other\\|one | mini | 1 | 0 | 1 |",
        "| **all** |  |  | 2 | 1 | 3 |",
        "| repositories | 2 |",
        "| turns of a run, mean | 3.67 |",
        "| tokens of a run, mean | 3.0 |",
        "| turns of unresolved runs with loss | 1 of 3 |",
        "| value curves that rise, then fall | 1 of 1 |",
        "| rise segments, median steps | 1 |",
        "Of 10 collected runs",
        "| too_long | 7 |",
        "| no_rise | 0 |",
        "| eps | 0.05 |",
    ):
        assert line in text


def test_nothing_is_left_of_a_set_that_could_not_be_written(tmp_path: Path) -> None:
    def failing() -> Any:
        yield made("a")
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        publish(failing(), tmp_path / "set", About("set"))
    with pytest.raises(DataError, match="too_long 3"):
        publish([], tmp_path / "set", About("set", dropped={"too_long": 3}))
    assert list(tmp_path.iterdir()) == []
    publish(runs(), tmp_path / "set", About("set"))
    with pytest.raises(DataError, match="not empty"):
        publish(runs(), tmp_path / "set", About("set"))
    with pytest.raises(SettingError, match=r"\.\./set"):
        About("../set")


def test_parquet_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError) as caught:
        publish(runs(), tmp_path / "set", About("set"))
    assert caught.value.hint == "pip install 'holdfast[recipes]'"
    publish(runs(), tmp_path / "set", About("set"), form="jsonl")
    assert validate(tmp_path / "set") == []


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "data" / "train-00000.jsonl"
    records = [row for _, row in files.lines(path)]
    change(records[1])
    files.write_lines(path, records)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda row: row.update(resolved=True), "column resolved is True, the record has False"),
        (lambda row: row.pop("cause"), "columns are missing: cause"),
        (lambda row: row.update(metadata="{"), "cannot be read"),
        (lambda row: row.update(credited_turns=[0]), "column credited_turns"),
    ],
)
def test_the_validator_sees_a_changed_row(change: Callable[[dict[str, Any]], None], expected: str, tmp_path: Path) -> None:
    publish(runs(), tmp_path / "set", About("set"), form="jsonl")
    edit(tmp_path / "set", change)
    found = validate(tmp_path / "set")
    assert any("train-00000.jsonl:2: " in line and expected in line for line in found), found
    assert any("digest" in line for line in found)


def test_the_validator_sees_files_and_counts_that_differ(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    publish(runs(), folder, About("set"), form="jsonl", rows_per_file=2)
    (folder / "data" / "extra.jsonl").write_text("{}\n")
    (folder / "data" / "train-00001.jsonl").unlink()
    found = validate(folder)
    assert "data/extra.jsonl: not in the manifest" in found
    assert "data/train-00001.jsonl: missing" in found
    assert "manifest.json: rows is 3, counted 2" in found
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="format 1"):
        validate(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value_of": None}, "without value_of"),
        ({"values": (0.4, 0.5)}, "2 values"),
        ({"values": (0.4, 1.5, 0.1)}, "no probability"),
        ({"rises": ((1, 2),)}, "fall within"),
        ({"rises": ((0, 1), (1, 2))}, "ordered"),
        ({"rises": ((0, 3),)}, "ordered"),
        ({"credited": (3,)}, "below 3"),
        ({"credited": ()}, "at least one"),
        ({"credited": (2, 1)}, "ascending"),
        ({"reward": 1.0}, "a resolved run"),
        ({"values": None}, "rises without values"),
        ({"task_id": ""}, "must not be empty"),
        ({"turns": ()}, ""),
    ],
)
def test_rules_within_a_record(changes: dict[str, Any], expected: str) -> None:
    assert problems_of(made("b", **RISEN)) == []
    found = problems_of(replace(made("b", **RISEN), **changes))
    assert (expected in "; ".join(found)) if expected else found == []


def test_results_belong_to_calls(tmp_path: Path) -> None:
    run = made("a", resolved=True)
    orphan = {"role": "tool", "tool_call_id": "c9", "content": ""}
    assert "c9" in problems_of(replace(run, messages=(*run.messages, orphan)))[0]
    path = tmp_path / "t.jsonl"
    files.write_lines(path, [to_json(run), to_json(run)])
    assert validate(path) == ["t.jsonl:2: the id a occurs twice"]
    assert validate(path, most=0) == ["(1 more)"]
