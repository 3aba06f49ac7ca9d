"""A GGUF file as a model: its metadata as a Hugging Face config, its tensors under Hugging Face names, in fp32.

Names and the Q/K row order follow llama.cpp's `convert_hf_to_gguf.py`. Must not know tokenizers or where files go.
"""

from __future__ import annotations

import math
import re
import reprlib
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from builders.errors import BuildError
from builders.family import normalize
from builders.safetensors_file import Tensor

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FREQS = "rope_freqs.weight"
Item = TypeVar("Item", int, float, str)


class GgufFile:
    """An open GGUF file. Raises BuildError when it is missing, damaged, truncated or of an unknown architecture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except OSError as error:
            raise BuildError(f"{path}: {error.strerror}") from None
        except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
            size = path.stat().st_size
            raise BuildError(
                f"{path}: truncated or damaged GGUF file ({size} bytes): {error}".splitlines()[0]
            ) from None
        self._values: dict[str, Any] = {}
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            allowed = ", ".join(ARCHITECTURES)
            raise BuildError(f"{path}: general.architecture: {self.architecture!r} is not supported; {allowed}")
        if self.get("split.count") not in (None, 0, 1):
            raise BuildError(f"{path}: split.count: split GGUF files are not supported; merge them first")

    def get(self, key: str) -> Any:
        """A metadata value as a Python value, None when absent; `{arch}` in the key stands for the architecture."""
        key = key.replace("{arch}", getattr(self, "architecture", ""))
        if key not in self._values:  # reading a vocabulary takes a moment
            field = self._reader.fields.get(key)
            try:
                self._values[key] = None if field is None else field.contents()
            except UnicodeDecodeError as error:
                raise BuildError(f"{self.path}: {key}: {error}") from None
        return self._values[key]

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise BuildError(f"{self.path}: {key.replace('{arch}', self.architecture)}: missing")
        return value

    def count(self, key: str) -> int:
        value = self.require(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(key, value, "one integer >= 1")
        return value

    def number(self, key: str) -> float:
        """A 32-bit float of the file as the decimal number that was meant: 1e-05, not 9.99999975e-06."""
        value = self.require(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, value, "one number")
        return float(str(np.float32(value)))

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def items(self, key: str, kind: type[Item]) -> list[Item]:
        """An array whose items are all of this type."""
        value = self.require(key)
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self._wrong(key, value, f"an array of {kind.__name__}")
        return value

    def _wrong(self, key: str, value: object, allowed: str) -> BuildError:
        key = key.replace("{arch}", self.architecture)
        return BuildError(f"{self.path}: {key}: {reprlib.repr(value)}; {allowed} is needed")

    def config(self) -> dict[str, Any]:
        """The normal config of this model, without token ids.

        llama.cpp's converter drops the sliding window of early Mistral models; where the file does not name one, the
        whole context is attended to, as llama.cpp itself does.
        """
        if self.get("{arch}.expert_count"):
            raise BuildError(f"{self.path}: {self.architecture}.expert_count: mixtures of experts are not supported")
        embeddings = self.tensors.get("token_embd.weight")
        if embeddings is None:
            raise BuildError(f"{self.path}: tensor token_embd.weight is missing")
        heads = self.count("{arch}.attention.head_count")
        hidden = self.count("{arch}.embedding_length")
        named, turned = "{arch}.attention.key_length", "{arch}.rope.dimension_count"
        head_dim = self.count(named) if self.get(named) else max(1, hidden // heads)
        rotated = self.count(turned) if self.get(turned) else head_dim
        theta = self.number("{arch}.rope.freq_base") if self.get("{arch}.rope.freq_base") else 10000.0
        raw = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "vocab_size": int(embeddings.shape[-1]),
            "hidden_size": hidden,
            "num_hidden_layers": self.require("{arch}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.get("{arch}.attention.head_count_kv"),
            "head_dim": head_dim,
            "intermediate_size": self.require("{arch}.feed_forward_length"),
            "rms_norm_eps": self.number("{arch}.attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.require("{arch}.context_length"),
            "partial_rotary_factor": rotated / head_dim,
            "rope_theta": theta,
            "rope_scaling": self._rope_scaling(theta, head_dim),
            "sliding_window": self.get("{arch}.attention.sliding_window"),
            "use_sliding_window": bool(self.get("{arch}.attention.sliding_window")),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "attention_bias": self.architecture != "qwen2" and "blk.0.attn_q.bias" in self.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self.tensors,
        }
        return normalize(raw, str(self.path))

    def _rope_scaling(self, theta: float, head_dim: int) -> dict[str, Any] | None:
        """RoPE scaling from metadata, or, for Llama 3.1 and later, from the tensor that holds its effect."""
        factors = self.tensors.get(ROPE_FREQS)
        if factors is None:
            old_factor = "{arch}.rope.scale_linear"  # of files from before 2024
            kind = self.text("{arch}.rope.scaling.type") or ("linear" if self.get(old_factor) else "none")
            key = "{arch}.rope.scaling.factor" if self.get("{arch}.rope.scaling.factor") else old_factor
            return (
                None if kind == "none" else {"rope_type": kind, "factor": self.number(key) if self.get(key) else None}
            )
        stored = np.asarray(factors.data, dtype=np.float64).reshape(-1)
        scaling = {"rope_type": "llama3", "factor": round(float(stored.max()), 3), "low_freq_factor": 1.0}
        scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        wanted = llama3_factors(scaling, theta, head_dim)
        if stored.shape != wanted.shape or not np.allclose(stored, wanted, rtol=1e-4):
            raise BuildError(
                f"{self.path}: {ROPE_FREQS}: not the RoPE scaling of Llama 3; other ones are not supported"
            )
        return scaling

    def open_tensors(self, config: dict[str, Any]) -> dict[str, Tensor]:
        """The model's tensors under Hugging Face names; each is dequantized to fp32 when it is read."""
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        tensors = {}
        for name, tensor in self.tensors.items():
            if name == ROPE_FREQS:
                continue
            # llama.cpp rotates neighbouring pairs for `llama`, Hugging Face halves: the rows of Q and K are reordered.
            block = name.split(".")[2] if name.startswith("blk.") else ""
            permuted = heads.get(block) if self.architecture == "llama" else None
            hf_name = hf_tensor_name(name)
            if hf_name is None:
                raise BuildError(f"{self.path}: tensor {name} is not part of a {self.architecture} model")
            shape = tuple(int(n) for n in reversed(tensor.shape))
            tensors[hf_name] = Tensor(hf_name, "F32", shape, partial(self._read, tensor, permuted))
        return tensors

    def _read(self, tensor: ReaderTensor, permuted_heads: int | None) -> memoryview:
        try:
            data = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise BuildError(f"{self.path}: {tensor.name}: type {kind} cannot be dequantized") from None
        data = data.astype(np.float32, copy=False)
        if permuted_heads is not None:
            pairs = data.reshape(permuted_heads, -1, 2, *data.shape[1:])
            data = pairs.swapaxes(1, 2).reshape(data.shape)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def hf_tensor_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None when these families have none."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, block, kind = match.groups()
        return f"model.layers.{layer}.{LAYER_NAMES[block]}.{kind}" if block in LAYER_NAMES else None
    block, _, kind = name.rpartition(".")
    return f"{NAMES[block]}.{kind}" if block in NAMES and kind == "weight" else None


def llama3_factors(scaling: dict[str, Any], theta: float, head_dim: int) -> Any:
    """What each rotary frequency is divided by under Llama 3's scaling, [head_dim / 2] (`apply_scaling`, Llama 3.1)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - blend) / scaling["factor"] + blend)
