"""verl's supervised trainer on exported rows: a data set of ids and masks, since its own gives every assistant message loss.

Owns ``MaskedDataset``, which ``data.custom_cls.path=pkg://holdfast_recipes.engines.verl_sft`` and ``data.custom_cls.name=MaskedDataset``
name. Rows are those of ``holdfast recipes export --engine verl``. Read against verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.pipeline import files


class MaskedDataset(Dataset):
    """Takes what verl's own data set takes; of ``config`` it reads ``pad_mode``, ``max_length`` and ``truncation``."""

    def __init__(self, parquet_files: Any, tokenizer: Any, config: Any = None, processor: Any = None, max_samples: int = -1) -> None:
        from pathlib import Path

        settings = config or {}
        self._padded = settings.get("pad_mode", "right") != "no_padding"
        self._length = int(settings.get("max_length", 1024))
        self._truncation = settings.get("truncation", "error")
        self._filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        names: Sequence[str] = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows = [(list(row["input_ids"]), list(row["loss_mask"])) for name in names for _, row in files.rows(Path(name))]
        self._rows = self._rows[:max_samples] if max_samples > 0 else self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, mask = self._rows[index]
        if len(ids) > self._length:
            if self._truncation not in ("left", "right"):
                raise ConfigurationError(
                    f"row {index} has {len(ids)} tokens, data.max_length is {self._length}: raise it, or set truncation"
                )
            kept = slice(-self._length, None) if self._truncation == "left" else slice(self._length)
            ids, mask = ids[kept], mask[kept]
        missing = self._length - len(ids) if self._padded else 0
        attention = [1] * len(ids) + [0] * missing
        made = {
            "input_ids": ids + [self._filler] * missing,
            "loss_mask": mask + [0] * missing,
            "position_ids": list(range(len(ids))) + [0] * missing,
        }
        tensors = {name: torch.tensor(values, dtype=torch.long) for name, values in made.items()}
        return tensors | ({"attention_mask": torch.tensor(attention, dtype=torch.long)} if self._padded else {})
