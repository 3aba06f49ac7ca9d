"""Wishes that no plan can grant, told with the numbers before anything is searched.

A promise below what one request alone takes, KV memory below one longest request, a model larger than a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import floor

from config_gen.facts import Facts, LlmFacts, OnnxFacts
from config_gen.planning.needs import on_host
from config_gen.planning.placing import USABLE
from config_gen.planning.unary_search import threads_of
from config_gen.sla.quantity import show_duration
from config_gen.sla.spec import LlmModel, OnnxModel, Spec
from decode.executors.gpu_cost import StepWork

GIB = 2**30
MIG = (
    "hardware.sharing: 'mig' cannot be planned as one repository: a process sees one slice of one card only; give each "
    "slice a file of its own, as a type with its memory"
)


class PlanError(ValueError):
    """A file that cannot be planned; one line per reason."""

    exit_status = 2


def check(spec: Spec, facts: Mapping[str, Facts], cores: int, card: int, host_memory: int) -> None:
    """Raise PlanError for what cannot be; `card` and `host_memory` in bytes, 0 where unknown."""
    mistakes: list[str] = []
    for name, model in spec.models.items():
        known = facts[name]
        if isinstance(model, LlmModel):
            assert isinstance(known, LlmFacts)
            mistakes += _llm(name, model, known, card if known.on_gpu else host_memory)
        else:
            assert isinstance(known, OnnxFacts)
            mistakes += _onnx(name, model, known, cores, card)
    if spec.hardware.sharing == "mig":
        mistakes.append(MIG)
    mistakes += [] if mistakes else _together(on_host(spec, facts), host_memory)
    if mistakes:
        raise PlanError("\n".join(mistakes))


def _together(parts: Mapping[str, int], memory: int) -> Iterator[str]:
    """What is on the host side by side must fit it."""
    wanted = sum(parts.values())
    if memory and wanted > memory:
        each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        yield (
            f"hardware.memory: the models take at least {wanted / GIB:.2f} GiB of the host ({each}), and it has "
            f"{memory / GIB:.2f} GiB; give more, or take smaller models, smaller max_model_len, fewer instances"
        )


def _llm(name: str, model: LlmModel, facts: LlmFacts, memory: int) -> Iterator[str]:
    where = f"models.{name}"
    if model.max_model_len > facts.max_model_len:
        yield f"{where}.max_model_len: {model.max_model_len} is not allowed; the model was made for at most " + str(
            facts.max_model_len
        )
    if facts.on_gpu and not memory:
        return
    one = model.max_model_len * facts.kv_bytes_per_token
    usable, what = memory * (USABLE if facts.on_gpu else 1), "a card" if facts.on_gpu else "the host"
    pinned = model.kv_cache_memory
    if pinned is not None and pinned < one:
        yield (
            f"{where}.kv_cache_memory: {pinned / GIB:.2f} GiB hold less than one request of max_model_len "
            f"{model.max_model_len} ({one / GIB:.2f} GiB at {facts.kv_bytes_per_token} bytes a token); give more, or a "
            "smaller max_model_len"
        )
    if memory and facts.weights_memory + one > usable:
        yield (
            f"{where}: weights of {facts.weights_memory / GIB:.1f} GiB and KV pages of one request of max_model_len "
            f"{model.max_model_len} ({one / GIB:.2f} GiB) do not fit the {usable / GIB:.1f} GiB that {what} has for "
            "them; take smaller weights or a smaller max_model_len"
        )
    elif memory and facts.weights_memory + (pinned or 0) > usable:
        yield (
            f"{where}.kv_cache_memory: {(pinned or 0) / GIB:.2f} GiB do not fit the {usable / GIB:.1f} GiB that {what} "
            f"has, beside weights of {facts.weights_memory / GIB:.1f} GiB; allowed: at most "
            f"{floor((usable - facts.weights_memory) / GIB * 100) / 100:.2f} GiB"
        )
    for tier, targets in model.targets.items():
        shape = model.traffic.get(tier)
        if shape is None:
            continue
        prompt = shape.prompt.median
        floors = {
            "ttft": facts.law.step(StepWork(prompt, 1, prompt * prompt // 2, 0, 0, 1)),
            "itl": facts.law.step(StepWork(0, 0, 0, 1, prompt, 1)),
        }
        floors["e2e"] = floors["ttft"] + (shape.output.median - 1) * floors["itl"]
        for metric, least in floors.items():
            yield from _below(f"{where}.targets.{tier}.{metric}", getattr(targets, metric), least, targets.at)


def _onnx(name: str, model: OnnxModel, facts: OnnxFacts, cores: int, card: int) -> Iterator[str]:
    where, profile = f"models.{name}", facts.profile
    if facts.on_gpu and not card:
        yield f"{where}: its engine was built for a card, and hardware.gpus names none; name some, or build it anew"
        return
    count = model.instances or 1
    whose = f"{count} instances take" if count > 1 else "one instance takes"
    if facts.on_gpu and count * facts.memory > card * USABLE:
        yield (
            f"{where}: {whose} {count * facts.memory / GIB:.1f} GiB, and a card has {card * USABLE / GIB:.1f} GiB "
            "for it; take a smaller precision or another card"
        )
    threads = 0 if facts.on_gpu else threads_of(cores, 1)
    for tier, sent in model.traffic.items():
        if facts.feed == "text" and sent.length is None:
            yield f"{where}.traffic.{tier}.length: is missing; the model takes texts, which cost by their length"
        if facts.feed != "text" and sent.length is not None:
            yield f"{where}.traffic.{tier}.length: is not allowed; the model takes no texts"
    for tier, targets in model.targets.items():
        shape = model.traffic.get(tier)
        if shape is not None:
            length = shape.length.median if shape.length else 0
            least = profile.ns(1, min(length, model.max_length), threads) + profile.prepare_ms * 1e6
            yield from _below(f"{where}.targets.{tier}.e2e", targets.e2e, least, targets.at)


def _below(path: str, target: int | None, least: float, q: Fraction) -> Iterator[str]:
    """A target that half of the requests miss even when each has everything for itself."""
    if target is not None and target < least and q >= Fraction(1, 2):
        yield (
            f"{path}: {show_duration(target)} cannot be kept: a request of median length alone on this hardware takes "
            f"{show_duration(least)}; allowed: more than that"
        )
