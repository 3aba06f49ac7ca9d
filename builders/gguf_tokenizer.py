"""The tokenizer inside a GGUF file as a `tokenizer.json` of the `tokenizers` library, and its special tokens.

Two kinds exist in the served families: byte-level BPE (`gpt2`), whose splitting rule the file only names, and
SentencePiece BPE (`llama`), whose merges follow from its scores. A rule that is not known here is refused, since a
guess would give wrong ids. Rules as in llama.cpp's `llama-vocab.cpp` and each model's own `tokenizer.json`.
"""

from __future__ import annotations

import reprlib
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from builders.errors import BuildError
from builders.gguf_model import GgufFile

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
LLAMA_BPE = ("llama-bpe", "llama3", "llama-v3")
PLAIN_GPT2 = ("gpt-2", "default")
KNOWN_SPLITS = ("smollm", *LLAMA_BPE, "qwen2", *PLAIN_GPT2)
SPECIAL_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises BuildError when its kind or its splitting rule is not known."""
    file.require("tokenizer.ggml.model")
    kind = file.text("tokenizer.ggml.model") or ""
    tokens = file.items("tokenizer.ggml.tokens", str)
    typed = bool(file.get("tokenizer.ggml.token_type"))
    types = file.items("tokenizer.ggml.token_type", int) if typed else [NORMAL] * len(tokens)
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or len(types) != len(tokens):
        raise BuildError(f"{file.path}: tokenizer.ggml.tokens: tokens must be unique and each have a type")
    for token in reversed(tokens):  # padding of the vocabulary to a round size; no text ever gives these
        if types[vocab[token]] != UNUSED:
            break
        del vocab[token]
    if kind == "gpt2":
        tokenizer = _byte_level(file, vocab)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, vocab, types)
    else:
        raise BuildError(f"{file.path}: tokenizer.ggml.model: {kind!r} is not supported; gpt2 or llama")
    added = {CONTROL: True, USER_DEFINED: False}
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=added[types[i]]) for t, i in vocab.items() if types[i] in added]
    )
    _add_bos_and_eos(file, tokenizer, tokens, kind)
    return tokenizer


def _byte_level(file: GgufFile, vocab: dict[str, int]) -> Tokenizer:
    split = file.text("tokenizer.ggml.pre") or "default"
    if split not in KNOWN_SPLITS:
        known = ", ".join(KNOWN_SPLITS)
        raise BuildError(f"{file.path}: tokenizer.ggml.pre: {split!r} is not supported; {known}")
    merges = [merge.partition(" ")[::2] for merge in file.items("tokenizer.ggml.merges", str)]
    tokenizer = Tokenizer(_bpe(file, vocab, merges, ignore_merges=split in LLAMA_BPE))
    regex = {"qwen2": QWEN2_SPLIT, **dict.fromkeys(LLAMA_BPE, LLAMA3_SPLIT)}.get(split)
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)]
    if regex is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(regex), behavior="isolated"))
    if split == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, vocab: dict[str, int], types: list[int]) -> Tokenizer:
    scores = file.items("tokenizer.ggml.scores", float)
    if len(scores) <= max(vocab.values(), default=-1):
        raise BuildError(f"{file.path}: tokenizer.ggml.scores: {len(scores)} scores; each token needs one")
    unknown = token_id(file, "unknown")
    token_of = {i: token for token, i in vocab.items()}
    pieces = {token: i for token, i in vocab.items() if types[i] in (NORMAL, USER_DEFINED)}
    merges = merges_of_scores(pieces, scores)
    options = {"unk_token": None if unknown is None else token_of.get(unknown), "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(_bpe(file, vocab, merges, **options))
    prefix = file.get("tokenizer.ggml.add_space_prefix")
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    tail: list[Any] = []
    if prefix is None or prefix:
        steps.insert(0, normalizers.Prepend("▁"))
        tail = [decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    return tokenizer


def merges_of_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """BPE merges that join pieces as SentencePiece does: always the pair whose result scores highest."""
    pairs = [
        (-scores[i], len(left), left, piece[len(left) :])
        for piece, i in vocab.items()
        for left in (piece[:cut] for cut in range(1, len(piece)))
        if left in vocab and piece[len(left) :] in vocab
    ]
    return [(left, right) for _, _, left, right in sorted(pairs)]


def _bpe(file: GgufFile, vocab: dict[str, int], merges: list[Any], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, merges, **options)
    except Exception as error:  # the library has no narrower class
        raise BuildError(f"{file.path}: tokenizer.ggml.merges: {error}") from None


def _add_bos_and_eos(file: GgufFile, tokenizer: Tokenizer, tokens: list[str], kind: str) -> None:
    """Have plain text begin with BOS (and end with EOS) where the model was trained so."""
    add_bos = file.get("tokenizer.ggml.add_bos_token")
    if add_bos is None:  # llama.cpp's defaults
        add_bos = kind == "llama" or file.get("tokenizer.ggml.pre") in LLAMA_BPE
    ids = {name: token_id(file, name) for name in ("bos", "eos")}
    wanted = {"bos": add_bos, "eos": file.get("tokenizer.ggml.add_eos_token")}
    around = {name: tokens[i] for name, i in ids.items() if i is not None and wanted[name]}
    if around:
        template = [around.get("bos"), "$A", around.get("eos")]
        try:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[part for part in template if part is not None],
                pair=None,
                special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys(around.values())],
            )
        except ValueError as error:  # a text that its notation has another meaning for
            raise BuildError(f"{file.path}: bos or eos token {list(around.values())}: {error}") from None


def special_tokens(file: GgufFile) -> dict[str, str]:
    """Strings of the special tokens a chat template may use: bos_token, eos_token, unk_token, pad_token."""
    tokens = file.items("tokenizer.ggml.tokens", str)
    ids = {name: token_id(file, key) for name, key in SPECIAL_KEYS.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None}


def token_id(file: GgufFile, name: str) -> int | None:
    """The id of a special token by llama.cpp's name for it (bos, eos, eot …), None when there is none."""
    key, count = f"tokenizer.ggml.{name}_token_id", len(file.items("tokenizer.ggml.tokens", str))
    value = file.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise BuildError(f"{file.path}: {key}: {reprlib.repr(value)} is not a token; 0 to {count - 1}")
    return value


def eos_token_ids(file: GgufFile) -> list[int]:
    """Every token that ends an answer: end of sequence, of turn, of message."""
    ids = [token_id(file, name) for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(i for i in ids if i is not None))
