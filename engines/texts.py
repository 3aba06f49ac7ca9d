"""Texts to token ids and back to padded arrays. Must not know models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engines.errors import EngineError, ItemError

MOST = 2**18  # bytes, far more than any model's tokens; encoding holds up everything else in the process
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"


class Texts:
    """Encodes with a `tokenizer.json`; its own padding and truncation are replaced by ours."""

    def __init__(self, path: Path, max_length: int, names: Sequence[str]) -> None:
        """`names`: which of input_ids, attention_mask and token_type_ids the model takes."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise EngineError(f"{path}: {error}; give the model's tokenizer.json") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self._pad = next(
            (self._tokenizer.token_to_id(t) for t in ("[PAD]", "<pad>") if self._tokenizer.token_to_id(t)), 0
        )
        self._names = tuple(names)

    def encode(self, item: object) -> list[int]:
        """Token ids of one text, str or UTF-8 bytes. Raises ItemError."""
        if isinstance(item, str | bytes) and len(item) > MOST:
            raise ItemError(f"text: {len(item):,} bytes; allowed: at most {MOST:,}")
        if isinstance(item, bytes):
            try:
                item = item.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ItemError(f"text: byte {error.start} is not UTF-8; allowed: UTF-8 text") from None
        if not isinstance(item, str):
            raise ItemError(f"text: is a {type(item).__name__}; allowed: UTF-8 text")
        ids: list[int] = self._tokenizer.encode(item).ids
        if not ids:
            raise ItemError("text: has no tokens; allowed: at least one")
        return ids

    def batch(self, items: Sequence[Sequence[int]], rows: int, length: int) -> dict[str, NDArray[np.int64]]:
        """Inputs int64 [rows, length]; rows beyond the items are padding altogether."""
        ids = np.full((rows, length), self._pad, np.int64)
        mask = np.zeros((rows, length), np.int64)
        for row, item in enumerate(items):
            ids[row, : len(item)] = item
            mask[row, : len(item)] = 1
        made = {IDS: ids, MASK: mask, TYPES: np.zeros_like(ids)}
        return {name: made[name] for name in self._names}
