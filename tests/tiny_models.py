"""Random models of every served family, made by transformers, small enough to build in a moment; GGUF files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SAMPLE = "The quick brown fox jumps over the lazy dog. 12345 naïve café, 日本語 🙂!\n" * 3
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": None,
}
FAMILIES: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama-tied-bias": lambda: transformers.LlamaConfig(
        **SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=32
    ),
    "llama3-rope": lambda: transformers.LlamaConfig(**SMALL, rope_parameters={**LLAMA3_ROPE, "rope_theta": 500000.0}),
    "linear-rope": lambda: transformers.LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=32),
}


def random_model(family: str) -> transformers.PreTrainedModel:
    """A model whose every parameter is random, norms and biases included, so that a lost one shows."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def byte_level_tokenizer() -> Tokenizer:
    """A byte-level BPE of 300 tokens or so; ids 0 and 1 are <s> and </s>, and text begins with <s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def save_hf(model: transformers.PreTrainedModel, directory: Path, *, max_shard_size: str = "1GB") -> Path:
    """Save a model and the byte-level tokenizer as a Hugging Face directory."""
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of Q or K as llama.cpp stores them for `llama` (`LlamaModel.permute` in convert_hf_to_gguf.py)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    model: transformers.PreTrainedModel, path: Path, tokenizer: dict[str, Any], quantization: str = "F32"
) -> Path:
    """Write a model as llama.cpp's converter would. `tokenizer` holds `tokenizer.*` keys without that prefix."""
    config = model.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    for key, value in tokenizer.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"tokenizer.{key}", value)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    kind = getattr(gguf.GGMLQuantizationType, quantization)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama" and ".q_proj." in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        data = tensor.float().numpy()
        if data.ndim > 1 and kind != gguf.GGMLQuantizationType.F32:
            data = gguf.quants.quantize(data, kind)
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), data, raw_dtype=kind)
        else:
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_byte_level(pre: str) -> dict[str, Any]:
    """`tokenizer.*` keys of the byte-level tokenizer, under a splitting rule."""
    vocab = byte_level_tokenizer().get_vocab()
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
    merges = [f"{left} {right}" for left, right in json.loads(byte_level_tokenizer().to_str())["model"]["merges"]]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "ggml.merges": merges,
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 1,
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}",
    }
