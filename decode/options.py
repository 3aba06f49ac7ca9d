"""What an operator sets, as it stands in a model's `config.pbtxt` parameters: text in, frozen limits out.

Must not know tensors or Triton: it gets a plain dict of strings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, get_args

from decode.config import ConfigError, EngineConfig, Mode, Policy, TierConfig
from decode.executors.model_config import Precision

DEFAULT_MODEL_LEN = 4096
MOST = 10**12  # of a number of a tier
_COUNT = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(r"0*([1-9][0-9]{0,17})(KiB|MiB|GiB)")
_UNIT = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of one served model. Names are those users know from vLLM where vLLM has them."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    max_model_len: int | None = None  # None = the model's own limit, at most 4096
    kv_cache_memory: int | None = None  # bytes of KV pages; None = 2 GiB on the CPU, what the next leaves on a card
    gpu_memory_utilization: float = 0.8  # share of the card that weights and KV pages may take
    page_size: int = 16
    watermark: float = 0.01
    prefix_cache: bool = True
    mode: Mode = "continuous"
    policy: Policy = "weighted"
    min_prefill_tokens: int = 32
    max_preemptions: int = 3
    early_refusal: bool = False
    swap_space: int | None = None  # bytes of host memory for evicted sequences; None = 4 GiB beside a GPU, 0 on the CPU
    weights: Precision = "fp32"
    device: str = "cpu"
    threads: int = 0  # 0 = all cores
    step_log: str = ""  # file that gets a line for every step, for gapless observe --trace and laws; empty = none
    default_tier: str = ""  # of requests that name none; empty = the first declared
    tiers: tuple[TierConfig, ...] = (TierConfig("default"),)

    def __post_init__(self) -> None:
        names = [t.name for t in self.tiers]
        if self.default_tier and self.default_tier not in names:
            raise ConfigError(f"default_tier: {self.default_tier!r} is not allowed; one of {', '.join(names)}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization: {self.gpu_memory_utilization} is not allowed; a share in (0, 1]"
            )

    @property
    def tier(self) -> str:
        """The tier of a request that names none."""
        return self.default_tier or self.tiers[0].name

    def engine_config(
        self, num_pages: int, max_model_len: int, eos_token_ids: tuple[int, ...] = (), vocab_size: int | None = None
    ) -> EngineConfig:
        """Limits of an engine with so many pages. Raises ConfigError when they contradict each other."""
        return EngineConfig(
            num_pages=num_pages,
            page_size=self.page_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.length(max_model_len),
            watermark=self.watermark,
            prefix_cache=self.prefix_cache,
            mode=self.mode,
            policy=self.policy,
            min_prefill_tokens=self.min_prefill_tokens,
            max_preemptions=self.max_preemptions,
            early_refusal=self.early_refusal,
            tiers=self.tiers,
            eos_token_ids=eos_token_ids,
            vocab_size=vocab_size,
        )

    def length(self, most: int) -> int:
        """Longest sequence served of a model made for `most` tokens. Raises ConfigError when more is asked."""
        length = self.max_model_len or min(DEFAULT_MODEL_LEN, most)
        if length > most:
            raise ConfigError(f"max_model_len: {length} is not allowed; the model was made for at most {most}")
        return length

    @classmethod
    def from_parameters(cls, parameters: dict[str, str]) -> ServiceOptions:
        """Parse `config.pbtxt` parameters. Raises ConfigError naming the parameter, its value and what is allowed."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(parameters) - known)
        if unknown:
            raise ConfigError(f"parameters.{unknown[0]}: unknown; one of {', '.join(sorted(known))}")
        return cls(**{name: _PARSERS.get(name, _count)(name, text.strip()) for name, text in parameters.items()})


def _refuse(name: str, text: str, allowed: str) -> ConfigError:
    return ConfigError(f"parameters.{name}: {text!r} is not allowed; {allowed}")


def _count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) < 1:
        raise _refuse(name, text, "a whole number >= 1")
    return int(text)


def _natural(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise _refuse(name, text, "a whole number >= 0")
    return int(text)


def _threads(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise _refuse(name, text, "a whole number >= 0; 0 = all cores")
    return int(text)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise _refuse(name, text, "a share from 0 to 1")
    return value


def _size(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _refuse(name, text, "a whole number with KiB, MiB or GiB, such as 2GiB")
    return int(match[1]) * _UNIT[match[2]]


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _refuse(name, text, "true or false")
    return text == "true"


def _one_of(*allowed: str) -> Any:
    def parse(name: str, text: str) -> str:
        if text not in allowed:
            raise _refuse(name, text, f"one of {', '.join(allowed)}")
        return text

    return parse


def _device(name: str, text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise _refuse(name, text, "cpu, cuda or cuda:N")
    return text


def _tiers(name: str, text: str) -> tuple[TierConfig, ...]:
    """`{"interactive": {"weight": 8, "queue_timeout_ms": 2000}, "batch": {"idle_below": 0.4}}`, highest first."""
    allowed = 'a JSON object of tiers, such as {"interactive": {"weight": 8, "queue_timeout_ms": 2000}}'
    try:
        raw = json.loads(text)
    except ValueError:
        raise _refuse(name, text, allowed) from None
    if not isinstance(raw, dict) or not raw:
        raise _refuse(name, text, allowed)
    return tuple(_tier(f"{name}.{tier}", values) for tier, values in raw.items())


# Keys of a tier: its field, the factor from the key's unit to the field's, whether it must be whole.
_TIER_KEYS = {
    "weight": ("weight", 1, False),
    "queue_timeout_ms": ("queue_timeout", 1_000_000, True),
    "max_queue": ("max_queue", 1, True),
    "ttft_ms": ("ttft", 1_000_000, True),
    "itl_ms": ("itl", 1_000_000, True),
    "e2e_ms": ("e2e", 1_000_000, True),
    "idle_below": ("idle_below", 1, False),
    "max_long": ("max_long", 1, True),
    "long_tokens": ("long_tokens", 1, True),
}


def _tier(path: str, values: object) -> TierConfig:
    if not isinstance(values, dict) or set(values) - set(_TIER_KEYS):
        raise _refuse(path, json.dumps(values), f"an object with any of {', '.join(_TIER_KEYS)}")
    found: dict[str, Any] = {}
    for key, value in values.items():
        field, factor, whole = _TIER_KEYS[key]
        # 0 is refused: it would turn every request away, where others mean "no limit"
        if whole and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise _refuse(f"{path}.{key}", json.dumps(value), "a whole number >= 1; leave it out for no limit")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _refuse(f"{path}.{key}", json.dumps(value), "a number")
        if not abs(value) <= MOST:
            raise _refuse(f"{path}.{key}", json.dumps(value)[:20], f"at most {MOST:.0e}")
        found[field] = value * factor
    return TierConfig(path.partition(".")[2], **found)


_PARSERS: dict[str, Any] = {
    "kv_cache_memory": _size,
    "swap_space": lambda name, text: 0 if text == "0" else _size(name, text),
    "gpu_memory_utilization": _share,
    "watermark": _share,
    "prefix_cache": _flag,
    "mode": _one_of(*get_args(Mode)),
    "policy": _one_of(*get_args(Policy)),
    "early_refusal": _flag,
    "max_preemptions": _natural,
    "weights": _one_of(*get_args(Precision)),
    "device": _device,
    "threads": _threads,
    "step_log": lambda name, text: text,
    "default_tier": lambda name, text: text,
    "tiers": _tiers,
}
