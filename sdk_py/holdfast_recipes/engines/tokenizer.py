"""A tokenizer of transformers as the recipes take one: pieces are encoded as they stand, ids are decoded with their special tokens.

Owns that wrapper. Imports nothing: the tokenizer is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HfTokenizer:
    """``tokenizer`` is a PreTrainedTokenizerBase."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def filler(self) -> int:
        """A token id for rows that have none."""
        for token in (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        return 0

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
