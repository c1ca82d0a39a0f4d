"""Exported rows in TRL's own supervised trainer: the labels that it trains on are our masks, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes.pipeline.export import Counts, Masked, exported, masked

from tests.recipes.engines import models
from tests.recipes.engines.masks import RUNS, TOKENIZER

trl = pytest.importorskip("trl")


@pytest.mark.parametrize("completion_only", [None, True])
def test_labels_are_the_credited_tokens(completion_only: bool | None, tmp_path: Path) -> None:
    from datasets import Dataset

    rows = list(exported(RUNS, "trl", TOKENIZER.encode, Counts()))
    settings: dict[str, Any] = {"max_length": None, "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no"}
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), completion_only_loss=completion_only, per_device_train_batch_size=len(RUNS), **settings
    )
    model = models.model(words=TOKENIZER.size)
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=models.tokenizer())
    expected = []
    for run in RUNS:
        made = masked(run, TOKENIZER.encode)
        assert isinstance(made, Masked)
        expected.append([token if bit else -100 for token, bit in zip(made.ids, made.mask, strict=True)])
    assert [list(labels) for labels in trainer.train_dataset["labels"]] == expected
    batch = next(iter(trainer.get_train_dataloader()))
    collated = sorted([label for label in row.tolist() if label != -100] for row in batch["labels"])
    assert collated == sorted([label for label in row if label != -100] for row in expected)
