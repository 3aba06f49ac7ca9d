"""Which decoder families are served, and the one normal form their configs are written in.

Llama 2/3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3 differ in a few facts only; each becomes a field. What would compute
something else than the original (other architectures, other RoPE scalings, a real sliding window) is refused by name.
Must not know where a config or a tensor comes from.
"""

from __future__ import annotations

from typing import Any

from builders.errors import BuildError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
COPIED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "rms_norm_eps")


def normalize(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The normal config of a Hugging Face one. `where` names its file in errors. Raises BuildError.

    The keys are Hugging Face's, all of them written out, plus `qkv_bias`, `o_bias` and `qk_norm`, which Hugging Face
    leaves to each family's code. Token ids, special tokens and the dtype are added by whoever read them.
    """
    architecture = _architecture(raw, where)
    family = ARCHITECTURES[architecture]
    for field in (*COPIED, "max_position_embeddings"):
        if not isinstance(raw.get(field), (int, float)) or not raw[field] > 0:
            raise BuildError(f"{where}: {field}: {raw.get(field)!r}; a number > 0 is needed")
    if raw.get("hidden_act", "silu") != "silu":
        raise BuildError(f"{where}: hidden_act: {raw['hidden_act']!r} is not supported; silu")
    if raw.get("quantization_config"):
        raise BuildError(f"{where}: quantization_config: quantized weights are not supported; float weights or a GGUF")
    heads = raw["num_attention_heads"]
    context = raw["max_position_embeddings"]
    _refuse_window(raw, family, context, where)
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise BuildError(f"{where}: partial_rotary_factor: only full rotation is supported")
    bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
    default_head_dim = 128 if family == "qwen3" else raw["hidden_size"] // heads
    return {
        "architectures": [architecture],
        "model_type": family,
        **{field: raw[field] for field in COPIED},
        "num_key_value_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or default_head_dim,
        "hidden_act": "silu",
        "rope_theta": float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        "rope_scaling": _rope_scaling(rope, where),
        "max_position_embeddings": context,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "attention_bias": bias,
        "qkv_bias": bias or family == "qwen2",
        "o_bias": bias,
        "mlp_bias": bool(raw.get("mlp_bias", False)) and family == "llama",
        "qk_norm": family == "qwen3",
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _architecture(raw: dict[str, Any], where: str) -> str:
    named = raw.get("architectures")
    kind = str(raw.get("model_type"))
    by_type = {family: architecture for architecture, family in ARCHITECTURES.items()}
    found = named[0] if isinstance(named, list) and named else by_type.get(kind, kind)
    if found not in ARCHITECTURES:
        raise BuildError(f"{where}: architecture {found!r} is not supported; {', '.join(ARCHITECTURES)}")
    return str(found)


def _refuse_window(raw: dict[str, Any], family: str, context: int, where: str) -> None:
    """Attention that looks back less far than the context would be computed wrong: refuse it."""
    # transformers' MistralConfig has a window of 4096 unless the file says otherwise; Qwen uses its only when told to.
    window = raw.get("sliding_window", 4096 if family == "mistral" else None)
    if family in ("qwen2", "qwen3") and not raw.get("use_sliding_window", False):
        window = None
    if window is not None and window < context:
        raise BuildError(
            f"{where}: sliding_window: {window} is shorter than max_position_embeddings ({context}) and sliding windows"
            f" are not supported; set max_position_embeddings to {window} to serve this model up to there"
        )
    kinds = set(raw.get("layer_types") or ()) - {"full_attention"}
    if kinds and not (kinds == {"sliding_attention"} and window is not None):
        raise BuildError(f"{where}: layer_types: {', '.join(sorted(kinds))} is not supported; full_attention")


def _rope_scaling(rope: dict[str, Any], where: str) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    fields = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind == "default":
        return None
    if kind not in fields:
        raise BuildError(f"{where}: rope_scaling: {kind!r} is not supported; default, linear or llama3")
    missing = [field for field in fields[kind] if not isinstance(rope.get(field), (int, float))]
    if missing:
        raise BuildError(f"{where}: rope_scaling: {missing[0]}: a number is needed for {kind}")
    return {"rope_type": kind, **{field: rope[field] for field in fields[kind]}}


def expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
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
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{at}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{at}.{name}.bias"] = (rows,)
        if config["qk_norm"]:
            shapes[f"{at}.self_attn.q_norm.weight"] = (head,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (head,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes
