"""A published data set as the package ``datasets`` loads it, which is what trainers do."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_recipes.core.records import from_row
from holdfast_recipes.pipeline.publish import About, Form, publish

from tests.recipes.pipeline.made import made

datasets = pytest.importorskip("datasets")
RESOLVED = 6_000
"""So many rows that the first block of a file of JSON lines has no credit column with a value."""


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_set_whose_first_rows_are_resolved_loads_with_its_thoughts(form: Form, tmp_path: Path) -> None:
    runs = [made(f"r{number}", 1, resolved=True) for number in range(RESOLVED)]
    runs.append(made("u", values=(0.4, 0.5, 0.1), value_of="after", rises=((0, 1),), credited=(1,)))
    folder = tmp_path / "set"
    publish(runs, folder, About("set"), form=form, rows_per_file=2 * RESOLVED)
    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert (len(loaded), loaded[0]["credited_turns"], loaded[-1]["credited_turns"]) == (len(runs), None, [1])
    assert loaded[-1]["rise_segments"] == [[0, 1]]
    assert loaded[0]["messages"][2]["reasoning_content"] == "thought 0"
    assert from_row(loaded[-1]) == runs[-1]
