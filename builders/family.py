"""Which decoder families are served, and the one normal form their configs are written in.

Llama 2/3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3 differ in a few facts only; each becomes a field. What would compute
something else than the original (other architectures, other RoPE scalings, a real sliding window) is refused by name.
Must not know where a config or a tensor comes from.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterator
from typing import Any

from builders.errors import BuildError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
LARGEST = 2**31 - 1  # of a size
COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def normalize(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The normal config of a Hugging Face one. `where` names its file in errors. Raises BuildError.

    The keys are Hugging Face's, all of them written out, plus `qkv_bias`, `o_bias` and `qk_norm`, which Hugging Face
    leaves to each family's code. Token ids, special tokens and the dtype are added by whoever read them.
    """
    architecture = _architecture(raw, where)
    family = ARCHITECTURES[architecture]
    counts = {field: _count(raw, field, where) for field in COUNTS}
    heads, context = counts["num_attention_heads"], _count(raw, "max_position_embeddings", where)
    rope = _mapping(raw, "rope_scaling", where) | _mapping(raw, "rope_parameters", where)
    _refuse_other_maths(raw, rope, where)
    _refuse_window(raw, family, context, where)
    bias = family in ("llama", "qwen3") and _flag(raw, "attention_bias", where)
    default_head_dim = 128 if family == "qwen3" else counts["hidden_size"] // heads
    head_dim = _count(raw, "head_dim", where, default_head_dim)
    if head_dim % 2:
        raise BuildError(f"{where}: head_dim: {head_dim}; an even number is needed, as pairs are rotated")
    theta = rope if rope.get("rope_theta") is not None else raw
    return {
        "architectures": [architecture],
        "model_type": family,
        **counts,
        "num_key_value_heads": _count(raw, "num_key_value_heads", where, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _positive(raw, "rms_norm_eps", where),
        "rope_theta": _positive(theta, "rope_theta", where, 10000.0),
        "rope_scaling": _rope_scaling(rope, where),
        "max_position_embeddings": context,
        "tie_word_embeddings": _flag(raw, "tie_word_embeddings", where),
        "attention_bias": bias,
        "qkv_bias": bias or family == "qwen2",
        "o_bias": bias,
        "mlp_bias": family == "llama" and _flag(raw, "mlp_bias", where),
        "qk_norm": family == "qwen3",
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _count(raw: dict[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = default if raw.get(field) is None else raw[field]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise BuildError(f"{where}: {field}: {reprlib.repr(value)}; an integer >= 1 and <= {LARGEST} is needed")
    return value


def _positive(raw: dict[str, Any], field: str, where: str, default: float | None = None) -> float:
    value = default if raw.get(field) is None else raw[field]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise BuildError(f"{where}: {field}: {reprlib.repr(value)}; a number > 0 is needed")
    return float(value)


def _flag(raw: dict[str, Any], field: str, where: str) -> bool:
    value = raw.get(field)
    if value is not None and not isinstance(value, bool):
        raise BuildError(f"{where}: {field}: {value!r}; true or false is needed")
    return bool(value)


def _mapping(raw: dict[str, Any], field: str, where: str) -> dict[str, Any]:
    value = raw.get(field)
    if value is not None and not isinstance(value, dict):
        raise BuildError(f"{where}: {field}: {value!r}; null or an object is needed")
    return dict(value or {})


def _architecture(raw: dict[str, Any], where: str) -> str:
    named = raw.get("architectures")
    kind = str(raw.get("model_type"))
    by_type = {family: architecture for architecture, family in ARCHITECTURES.items()}
    found = named[0] if isinstance(named, list) and named else by_type.get(kind, kind)
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise BuildError(f"{where}: architecture {found!r} is not supported; {', '.join(ARCHITECTURES)}")
    return found


def _refuse_other_maths(raw: dict[str, Any], rope: dict[str, Any], where: str) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise BuildError(f"{where}: hidden_act: {raw['hidden_act']!r} is not supported; silu")
    if raw.get("quantization_config"):
        raise BuildError(f"{where}: quantization_config: quantized weights are not supported; float weights or a GGUF")
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise BuildError(f"{where}: partial_rotary_factor: only full rotation is supported")


def _refuse_window(raw: dict[str, Any], family: str, context: int, where: str) -> None:
    """Attention that looks back less far than the context would be computed wrong: refuse it."""
    # transformers' MistralConfig has a window of 4096 unless the file says otherwise; Qwen uses its only when told to.
    window = raw.get("sliding_window", 4096 if family == "mistral" else None)
    if family in ("qwen2", "qwen3") and not _flag(raw, "use_sliding_window", where):
        window = None
    if window is not None and _count({"sliding_window": window}, "sliding_window", where) < context:
        raise BuildError(
            f"{where}: sliding_window: {window} is shorter than max_position_embeddings ({context}) and sliding windows"
            f" are not supported; set max_position_embeddings to {window} to serve this model up to there"
        )
    allowed = ["full_attention"] if window is None else ["full_attention", "sliding_attention"]
    kinds = raw.get("layer_types") or ()
    for kind in kinds if isinstance(kinds, list | tuple) else (kinds,):
        if kind not in allowed:
            raise BuildError(f"{where}: layer_types: {kind!r} is not supported; {' or '.join(allowed)}")


def _rope_scaling(rope: dict[str, Any], where: str) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    fields = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in fields:
        raise BuildError(f"{where}: rope_scaling: {kind!r} is not supported; default, linear or llama3")
    scaling: dict[str, Any] = {field: _positive(rope, field, where) for field in fields[kind]}
    if kind == "llama3":
        scaling["original_max_position_embeddings"] = _count(rope, "original_max_position_embeddings", where)
    return {"rope_type": kind, **scaling}


def expected_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor a model of this normal config has, in the order of the forward pass."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    linears = {
        "self_attn.q_proj": (q, hidden, config["qkv_bias"]),
        "self_attn.k_proj": (kv, hidden, config["qkv_bias"]),
        "self_attn.v_proj": (kv, hidden, config["qkv_bias"]),
        "self_attn.o_proj": (hidden, q, config["o_bias"]),
        "mlp.gate_proj": (inner, hidden, config["mlp_bias"]),
        "mlp.up_proj": (inner, hidden, config["mlp_bias"]),
        "mlp.down_proj": (hidden, inner, config["mlp_bias"]),
    }
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        for name, (rows, columns, bias) in linears.items():
            yield f"{at}.{name}.weight", (rows, columns)
            if bias:
                yield f"{at}.{name}.bias", (rows,)
        if config["qk_norm"]:
            yield f"{at}.self_attn.q_norm.weight", (head,)
            yield f"{at}.self_attn.k_norm.weight", (head,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)
