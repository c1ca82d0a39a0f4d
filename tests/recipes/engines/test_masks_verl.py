"""Exported rows through the data set that verl's supervised trainer makes and its collator: ids and loss masks are ours, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_recipes import cli
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.records import to_row
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.export import Masked, masked

from tests.recipes.engines import models
from tests.recipes.engines.masks import RUNS, TOKENIZER

pytest.importorskip("verl")
LENGTH = 8192


def dataset(tmp_path: Path, **settings: object) -> object:
    from omegaconf import OmegaConf
    from verl.trainer.sft_trainer import create_sft_dataset

    files.write_lines(tmp_path / "runs.jsonl", map(to_row, RUNS))
    rows = tmp_path / "rows.parquet"
    assert cli.main(["export", str(tmp_path / "runs.jsonl"), "--engine", "verl", "--out", str(rows)]) == 0
    custom = {"path": "pkg://holdfast_recipes.engines.verl_sft", "name": "MaskedDataset"}
    config = OmegaConf.create({"custom_cls": custom, "max_length": LENGTH, "truncation": "error", **settings})
    return create_sft_dataset(str(rows), config, models.tokenizer(), None)


@pytest.mark.parametrize("pad_mode", ["right", "no_padding"])
def test_loss_masks_are_the_credited_tokens(pad_mode: str, tmp_path: Path) -> None:
    from verl.utils.dataset.dataset_utils import DatasetPadMode, SFTTensorCollator

    made = dataset(tmp_path, pad_mode=pad_mode)
    batch = SFTTensorCollator(DatasetPadMode(pad_mode))([made[index] for index in range(len(made))])  # type: ignore[index, arg-type]
    for run, ids, mask in zip(RUNS, batch["input_ids"], batch["loss_mask"], strict=True):
        expected = masked(run, TOKENIZER.encode)
        assert isinstance(expected, Masked)
        count = len(expected.ids)
        assert (ids.tolist()[:count], mask.tolist()[:count]) == (list(expected.ids), list(expected.mask))
        assert not any(mask.tolist()[count:])
        assert len(ids) == (LENGTH if pad_mode == "right" else count)


def test_a_row_that_is_too_long_is_refused_unless_it_may_be_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_length is 64"):
        dataset(tmp_path, pad_mode="right", max_length=64)[0]  # type: ignore[index]
