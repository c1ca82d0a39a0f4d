"""Text to token ids and back: the protocol, and a tokenizer of bytes that needs no files.

Owns ``Tokenizer``, which those of transformers satisfy through a wrapper of two lines, and ``ByteTokenizer`` for tests and for small
models that are trained from scratch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


class Tokenizer(Protocol):
    """``decode(encode(text)) == text``; a piece is encoded by itself, without tokens added around it."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteTokenizer:
    """Ids 0 … 255 are the bytes of UTF-8, those above are the special tokens in their order."""

    def __init__(self, specials: Sequence[str] = SPECIALS) -> None:
        self._specials = tuple(specials)
        self._ids = {special: 256 + index for index, special in enumerate(self._specials)}
        self._split = re.compile(f"({'|'.join(map(re.escape, self._specials))})") if self._specials else None

    @property
    def size(self) -> int:
        """The number of ids."""
        return 256 + len(self._specials)

    def special(self, text: str) -> int:
        """The id of a special token. Raises KeyError for a text that is none."""
        return self._ids[text]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text) if self._split else [text]:
            if part in self._ids:
                ids.append(self._ids[part])
            else:
                ids.extend(part.encode("utf-8", "surrogatepass"))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are not UTF-8, as a sampled sequence may be, become U+FFFD."""
        parts: list[str] = []
        held = bytearray()
        for token in ids:
            if token < 256:
                held.append(token)
                continue
            parts += [held.decode("utf-8", "replace"), self._specials[token - 256]]
            held.clear()
        return "".join([*parts, held.decode("utf-8", "replace")])
