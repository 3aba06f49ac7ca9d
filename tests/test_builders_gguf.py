"""GGUF files: weights against transformers' own reader, tokenizers against SentencePiece and hand-made splits."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import safetensors.torch
import sentencepiece
import tiny_models
import tokenizers
import torch
import transformers

from builders.errors import BuildError
from builders.gguf_model import GgufFile
from builders.llm import build_llm
from decode.detokenizer import Detokenizer
from decode.executors.model_config import ModelConfig, RopeScaling
from decode.text import Tokenizer

GGUF_FAMILIES = ("llama", "llama-tied-bias", "mistral", "qwen2", "qwen3")
TEXTS = ("The quick  brown fox\n\njumps 12345!", " naïve café", "日本語 🙂 👩‍👩‍👧", "", "a</s>b", "<0x41>")


def built_gguf(tmp_path: Path, keys: dict[str, Any], family: str = "llama", quantization: str = "F32") -> Path:
    model = tiny_models.random_model(family)
    file = tiny_models.write_gguf(model, tmp_path / "m.gguf", keys, quantization)
    return build_llm(f"gguf:{file}", tmp_path / "out").out


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_weights_come_back_as_they_were(family: str, tmp_path: Path) -> None:
    built = built_gguf(tmp_path, tiny_models.gguf_byte_level("gpt-2"), family)
    tensors = safetensors.torch.load_file(built / "model.safetensors")
    original = tiny_models.random_model(family)
    expected = {n: t for n, t in original.state_dict().items() if n in tensors}
    assert len(expected) == len(list(original.parameters())) == len(tensors)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    ids = torch.arange(2, 34).reshape(1, 32)
    reread = transformers.AutoModelForCausalLM.from_pretrained(built).eval()
    with torch.no_grad():
        assert torch.equal(reread(ids).logits, original.eval()(ids).logits)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantized_weights_are_what_transformers_reads(quantization: str, tmp_path: Path) -> None:
    built = built_gguf(tmp_path, tiny_models.gguf_byte_level("gpt-2"), "llama", quantization)
    tensors = safetensors.torch.load_file(built / "model.safetensors")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in read.state_dict().items())
    assert ModelConfig.read(built).norm_eps == 1e-06


def test_llama3_scaling_is_recovered_from_its_tensor(tmp_path: Path) -> None:
    """llama.cpp stores the scaling of Llama 3.1 and later only as the factors it gives (`rope_freqs.weight`)."""
    model = tiny_models.random_model("llama3-rope")
    file = tiny_models.write_gguf(model, tmp_path / "m.gguf", tiny_models.gguf_byte_level("llama-bpe"))
    plain = model.config.rope_parameters["rope_theta"] ** -(torch.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(8) and factors.min() == pytest.approx(1)
    with_tensor(file, "rope_freqs.weight", factors)
    built = build_llm(f"gguf:{file}", tmp_path / "out").out
    assert ModelConfig.read(built).rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    with_tensor(file, "rope_freqs.weight", factors + 0.5)
    with pytest.raises(BuildError, match=r"rope_freqs.weight: not the RoPE scaling of Llama 3"):
        build_llm(f"gguf:{file}", tmp_path / "out")


def with_tensor(file: Path, name: str, data: Any) -> None:
    """Rewrite a GGUF file with a tensor more, or another one in its place."""
    reader = gguf.GGUFReader(file)
    copy = file.with_suffix(".copy")
    writer = gguf.GGUFWriter(copy, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if tensor.name != name:
            writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copy.replace(file)


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["It", "'s", " 12345", " dollars", "!!", "\n\n ", " ok", " DON", "'", "T"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " dollars", "!!", "\n\n ", " ok", " DON", "'", "T"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " dollars", "!!\n\n", " ", " ok", " DON", "'T"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " dollars", "!!\n\n", " ", " ok", " DON", "'T"]),
    ],
)
def test_each_rule_splits_as_its_models_do(pre: str, expected: list[str], tmp_path: Path) -> None:
    built = built_gguf(tmp_path, tiny_models.gguf_byte_level(pre))
    tokenizer = tokenizers.Tokenizer.from_file(str(built / "tokenizer.json"))
    text = "It's 12345 dollars!!\n\n  ok DON'T"
    pieces = [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == expected


def test_qwen_text_is_composed_first(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(built_gguf(tmp_path, tiny_models.gguf_byte_level("qwen2")))
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_byte_level_ids_are_those_of_the_tokenizer_it_was_made_from(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(
        built_gguf(tmp_path, tiny_models.gguf_byte_level("gpt-2") | {"ggml.add_bos_token": True})
    )
    original = tiny_models.byte_level_tokenizer()
    for text in TEXTS:
        assert list(tokenizer.encode(text)) == original.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == original.decode(original.encode(text).ids)


def test_bos_is_added_where_the_model_wants_it(tmp_path: Path) -> None:
    for pre, key, wanted in [
        ("gpt-2", None, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("qwen2", True, True),
    ]:
        keys = tiny_models.gguf_byte_level(pre) | ({} if key is None else {"ggml.add_bos_token": key})
        tokenizer = Tokenizer.load(built_gguf(tmp_path, keys))
        assert (tokenizer.encode("fox")[0] == 0) == wanted, (pre, key)
        assert tokenizer.encode_chat([{"role": "user", "content": "fox"}]).count(0) == 1


@pytest.fixture(scope="module")
def spm() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE as Llama 2's: byte fallback, digits apart, blanks kept."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_models.SAMPLE.splitlines() * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=318,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_keys(spm: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    def kind(i: int) -> int:
        return 2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1

    ids = range(spm.vocab_size())
    return {
        "ggml.model": "llama",
        "ggml.tokens": [spm.id_to_piece(i) for i in ids],
        "ggml.scores": [spm.get_score(i) for i in ids],
        "ggml.token_type": [kind(i) for i in ids],
        "ggml.bos_token_id": spm.bos_id(),
        "ggml.eos_token_id": spm.eos_id(),
        "ggml.unknown_token_id": spm.unk_id(),
    }


def test_sentencepiece_ids_and_text_are_sentencepieces(
    spm: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(built_gguf(tmp_path, spm_keys(spm)))
    for text in [t for t in TEXTS if "</s>" not in t] + ["  two  blanks ", "ж", "\t"]:
        ids = tokenizer.encode(text)
        assert list(ids) == [spm.bos_id(), *spm.encode(text)], text
        assert tokenizer.decode(ids) == spm.decode(spm.encode(text)) == text


def test_text_that_follows_a_prompt_keeps_its_blank(spm: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(built_gguf(tmp_path, spm_keys(spm)))
    ids = tokenizer.encode("fox jumps")
    after = ids[len(tokenizer.encode("fox")) :]
    for continues, expected in ((False, "jumps"), (True, " jumps")):
        stream = Detokenizer(tokenizer, continues=continues)
        assert "".join(map(stream.push, after)) + stream.flush() == expected


def test_padding_of_the_vocabulary_is_no_text(tmp_path: Path) -> None:
    keys = tiny_models.gguf_byte_level("qwen2")
    keys["ggml.tokens"] = keys["ggml.tokens"] + ["[PAD1]", "[PAD2]"]
    keys["ggml.token_type"] = keys["ggml.token_type"] + [5, 5]
    tokenizer = Tokenizer.load(built_gguf(tmp_path, keys))
    assert tokenizer.decode([len(keys["ggml.tokens"]) - 1]) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.pre": "viking"}, "tokenizer.ggml.pre: 'viking' is not supported"),
        ({"ggml.model": "t5"}, "tokenizer.ggml.model: 't5' is not supported"),
        ({"ggml.merges": ["x"]}, "tokenizer.ggml.merges"),
        ({"ggml.merges": ["nowhere else"]}, "tokenizer.ggml.merges"),
        ({"ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens"),
        ({"ggml.bos_token_id": 99999, "ggml.add_bos_token": True}, "tokenizer.ggml.bos_token_id: 99999"),
        ({"ggml.bos_token_id": "1"}, "tokenizer.ggml.bos_token_id: '1' is not a token"),
        ({"ggml.eos_token_id": [1]}, r"tokenizer.ggml.eos_token_id: \[1\] is not a token"),
        ({"ggml.tokens": "abc"}, "tokenizer.ggml.tokens: 'abc'; an array of str is needed"),
        ({"ggml.tokens": [1, 2]}, r"tokenizer.ggml.tokens: \[1, 2\]; an array of str is needed"),
        ({"ggml.token_type": "x"}, "tokenizer.ggml.token_type: 'x'; an array of int"),
        ({"ggml.merges": [1]}, r"tokenizer.ggml.merges: \[1\]; an array of str"),
        ({"ggml.model": "llama", "ggml.scores": [0.5]}, "tokenizer.ggml.scores: 1 scores; each token needs one"),
        ({"ggml.model": "llama", "ggml.scores": ["a"]}, "tokenizer.ggml.scores: .*; an array of float"),
        ({"chat_template": 7}, "tokenizer.chat_template: 7; a string is needed"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        built_gguf(tmp_path, tiny_models.gguf_byte_level("gpt-2") | changes)


def test_special_tokens_reach_the_config(tmp_path: Path) -> None:
    keys = tiny_models.gguf_byte_level("gpt-2") | {"ggml.eot_token_id": 5}
    built = built_gguf(tmp_path, keys)
    assert json.loads((built / "config.json").read_text())["special_tokens"] == {
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    assert ModelConfig.read(built).eos_token_ids == (1, 5)


@pytest.mark.parametrize(
    "key",
    [
        "llama.attention.layer_norm_rms_epsilon",
        "llama.rope.freq_base",
        "llama.rope.scaling.factor",
        "llama.attention.key_length",
        "llama.rope.dimension_count",
        "split.count",
    ],
)
def test_a_key_of_another_type_is_named(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(self: GgufFile, wanted: str) -> Any:
        wanted = wanted.replace("{arch}", "llama")
        return {key: "abc", "llama.rope.scaling.type": "linear"}.get(wanted) or read(self, wanted)

    read = GgufFile.get
    monkeypatch.setattr(GgufFile, "get", another)
    with pytest.raises(BuildError, match=rf"m.gguf: {key}: "):
        built_gguf(tmp_path, tiny_models.gguf_byte_level("gpt-2"))
