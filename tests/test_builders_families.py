"""Every family built from a Hugging Face directory computes what the original computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import tiny_models
import torch
import transformers

from builders.llm import build_llm
from decode.executors.model_config import ModelConfig, RopeScaling
from decode.text import Tokenizer

IDS = torch.arange(2, 66).reshape(2, 32)


def logits(directory: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_built_model_computes_what_the_original_does(family: str, tmp_path: Path) -> None:
    original = tiny_models.random_model(family)
    source = tiny_models.save_hf(original, tmp_path / "hf")
    build_llm(f"hf:{source}", tmp_path / "out")
    with torch.no_grad():
        expected = original(IDS).logits
    assert torch.equal(logits(tmp_path / "out"), expected)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_config_says_all_an_executor_needs(family: str, tmp_path: Path) -> None:
    original = tiny_models.random_model(family)
    built = build_llm(f"hf:{tiny_models.save_hf(original, tmp_path / 'hf')}", tmp_path / "out")
    config = ModelConfig.read(built.out)
    names = set(safetensors.torch.load_file(built.out / "model.safetensors"))
    attention, mlp = original.model.layers[0].self_attn, original.model.layers[0].mlp
    assert config.head_dim == attention.head_dim
    assert config.num_heads * config.head_dim == attention.q_proj.out_features
    assert config.num_kv_heads * config.head_dim == attention.k_proj.out_features
    assert config.qkv_bias == (attention.q_proj.bias is not None)
    assert config.o_bias == (attention.o_proj.bias is not None)
    assert config.mlp_bias == (mlp.up_proj.bias is not None)
    assert config.qk_norm == hasattr(attention, "q_norm")
    assert config.tie_embeddings == ("lm_head.weight" not in names)
    assert config.num_parameters == sum(p.numel() for p in original.parameters()) == built.num_parameters
    assert config.weights_bytes == 4 * config.num_parameters == built.num_bytes
    assert config.kv_bytes_per_token(2) == 2 * 2 * 2 * config.head_dim * 2
    assert config.rope_theta == original.config.rope_parameters["rope_theta"]
    assert (config.bos_token_id, config.eos_token_ids) == (0, (1,))


def test_rope_scalings_are_kept(tmp_path: Path) -> None:
    for family in ("llama3-rope", "linear-rope", "llama"):
        tiny_models.save_hf(tiny_models.random_model(family), tmp_path / family)
        build_llm(f"hf:{tmp_path / family}", tmp_path / "out" / family)
    read = {family: ModelConfig.read(tmp_path / "out" / family).rope_scaling for family in ("llama3-rope", "llama")}
    assert read == {"llama3-rope": RopeScaling("llama3", 8.0, 1.0, 4.0, 8192), "llama": None}
    assert ModelConfig.read(tmp_path / "out" / "linear-rope").rope_scaling == RopeScaling("linear", 2.0)


def test_older_configs_mean_the_same(tmp_path: Path) -> None:
    """transformers 4 wrote `rope_theta`, `rope_scaling` with `type`, and `torch_dtype`."""
    source = tiny_models.save_hf(tiny_models.random_model("linear-rope"), tmp_path / "hf")
    raw = json.loads((source / "config.json").read_text())
    del raw["rope_parameters"], raw["head_dim"]
    raw |= {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (source / "config.json").write_text(json.dumps(raw))
    config = ModelConfig.read(build_llm(f"hf:{source}", tmp_path / "out").out)
    assert (config.rope_theta, config.rope_scaling, config.head_dim) == (5000.0, RopeScaling("linear", 2.0), 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_are_joined_and_their_type_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    original = tiny_models.random_model("llama").to(dtype)
    source = tiny_models.save_hf(original, tmp_path / "hf", max_shard_size="40KB")
    assert len(list(source.glob("model-*.safetensors"))) > 2
    built = build_llm(f"hf:{source}", tmp_path / "out")
    tensors = safetensors.torch.load_file(built.out / "model.safetensors")
    expected = original.state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert ModelConfig.read(built.out).dtype == str(dtype).removeprefix("torch.")


def test_every_end_of_text_token_is_known(tmp_path: Path) -> None:
    source = tiny_models.save_hf(tiny_models.random_model("llama"), tmp_path / "hf")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 1]}))
    assert ModelConfig.read(build_llm(f"hf:{source}", tmp_path / "out").out).eos_token_ids == (1, 7)


def test_a_chat_template_is_found_wherever_it_is_kept(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    tokens = {"bos_token": {"content": "<s>"}}
    places: dict[str, dict[str, object]] = {
        "chat_template.jinja": {"tokenizer_config.json": tokens, "chat_template.jinja": template},
        "tokenizer_config.json": {"tokenizer_config.json": {**tokens, "chat_template": template}},
        "several": {"tokenizer_config.json": {**tokens, "chat_template": named}},
        "chat_template.json": {"tokenizer_config.json": tokens, "chat_template.json": {"chat_template": template}},
    }
    for place, files in places.items():
        source = tiny_models.save_hf(tiny_models.random_model("llama"), tmp_path / place)
        for name, content in files.items():
            (source / name).write_text(content if isinstance(content, str) else json.dumps(content))
        tokenizer = Tokenizer.load(build_llm(f"hf:{source}", tmp_path / "out" / place).out)
        # BOS is in the template's text, and is not added a second time.
        assert tokenizer.encode_chat([{"role": "user", "content": "fox"}]) == tokenizer.encode("fox"), place
