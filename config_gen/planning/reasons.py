"""A chosen way to serve as a ModelPlan: every setting with the sentence that says why it has this value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from config_gen.facts import Facts, LlmFacts, OnnxFacts
from config_gen.plan import Knob, ModelPlan, Tensor, WarmUp
from config_gen.planning.llm_search import LlmCandidate, longest_request
from config_gen.planning.placing import MOST_SHARING
from config_gen.planning.settling import Choice
from config_gen.planning.unary_search import Candidate, threads_of
from config_gen.sla.quantity import show_duration
from config_gen.sla.spec import LlmModel, OnnxModel, Spec
from config_gen.triton.llm_tensors import INPUTS, OUTPUTS

MIB = 2**20
PIXELS = "pixels"  # the input of a picture model that needs no decoding


def model_plan(
    spec: Spec, name: str, facts: Facts, choice: Choice, cards: tuple[int, ...], cores: int, beside: str
) -> ModelPlan:
    """`beside`: batchable models that compute on the same cards, by name."""
    model = spec.models[name]
    if isinstance(choice, LlmCandidate):
        assert isinstance(model, LlmModel) and isinstance(facts, LlmFacts)
        return _llm(spec, name, model, facts, choice, cards)
    assert isinstance(model, OnnxModel) and isinstance(facts, OnnxFacts)
    return _onnx(spec, name, model, facts, choice, cards, cores, beside)


def _llm(
    spec: Spec, name: str, model: LlmModel, facts: LlmFacts, choice: LlmCandidate, cards: tuple[int, ...]
) -> ModelPlan:
    return ModelPlan(
        name,
        cards,
        INPUTS,
        OUTPUTS,
        parameters=choice.parameters,
        memory=choice.memory,
        knobs=tuple(_llm_knobs(spec, name, model, facts, choice, cards)),
    )


def _llm_knobs(
    spec: Spec,
    name: str,
    model: LlmModel,
    facts: LlmFacts,
    choice: LlmCandidate,
    cards: tuple[int, ...],
) -> Iterator[Knob]:
    config = choice.served.config
    why = {
        "weights": f"from the file; a step costs what was {facts.told}",
        "max_model_len": f"from the file; the longest of ten thousand requests of this traffic has "
        f"{longest_request(spec, name)} tokens",
        "tiers": "weights, bounds and targets of the file: the scheduler keeps to them from step to step",
        "max_num_seqs": _pinned(model.max_num_seqs) or "the fewest of those tried that leave as much of the targets",
        "max_num_batched_tokens": _pinned(model.max_num_batched_tokens)
        or (
            f"longest steps that keep the targets: alone {choice.margin:.0%} of the tightest is left"
            if choice.margin >= 0
            else "the fewest requests are late with steps of this length"
        ),
        "kv_cache_memory": _pinned(model.kv_cache_memory)
        or f"{config.num_pages} pages of {config.page_size} tokens; at most {choice.pages_peak:.0%} were in use",
        "swap_space": _pinned(model.swap_space)
        or (
            "host memory for pages of requests that make room: copied back where that is predicted to be faster"
            if cards
            else "KV pages are in the host's memory already"
        ),
        "threads": "hardware.cores of the file",
        "device": "the card of its instance group" if cards else "its executor is for the CPU; all cores",
    }
    yield Knob("max_batch_size", "0", "it batches by itself, step by step; Triton must hand over at once")
    yield Knob("instance_group.count", "1", _where(cards))
    for key, value in choice.parameters.items():
        yield Knob(f"parameters.{key}", value, why[key])


def _onnx(
    spec: Spec,
    name: str,
    model: OnnxModel,
    facts: OnnxFacts,
    choice: Candidate,
    cards: tuple[int, ...],
    cores: int,
    beside: str,
) -> ModelPlan:
    # Triton takes an empty list for [max_batch_size]; written, the plan is what the server reports.
    batching = replace(
        choice.served.batching,
        preferred=choice.served.batching.preferred or (choice.served.batching.max_batch_size,),
    )
    limited = bool(beside and cards)
    knobs = list(_onnx_knobs(spec, model, facts, choice, cards, cores))
    if limited:
        told = f"at most {MOST_SHARING} executions at once on a card that it shares with {beside}"
        knobs.append(Knob("instance_group.rate_limiter", "1", told))
    return ModelPlan(
        name,
        cards,
        facts.inputs,
        facts.outputs,
        batching,
        response_cache=model.response_cache is not None,
        warm_up=_warm_up(facts),
        rate_limit={"executions": 1} if limited else None,
        memory=choice.memory,
        knobs=tuple(knobs),
    )


def _onnx_knobs(
    spec: Spec, model: OnnxModel, facts: OnnxFacts, choice: Candidate, cards: tuple[int, ...], cores: int
) -> Iterator[Knob]:
    batching = choice.served.batching
    size, instances = batching.max_batch_size, batching.instances
    threads = 0 if facts.on_gpu else threads_of(cores, instances)
    length = facts.profile.typical_length
    one, many = (facts.profile.ns(rows, length, threads) for rows in (1, size))
    told = f"a batch of {size} takes {show_duration(many)} and one request {show_duration(one)}"
    yield Knob("max_batch_size", str(size), f"{told} (at {length} tokens)" if length else told)
    yield from _waiting_knobs(model, choice)
    yield Knob(
        "instance_group.count",
        str(instances),
        f"{_pinned(model.instances) or 'the fewest that keep the targets'}; {_where(cards)}"
        + ("" if facts.on_gpu else f", {threads} thread{'s' if threads > 1 else ''} each")
        + f", {facts.memory / MIB:.0f} MiB each",
    )
    yield from _level_knobs(spec, choice, cards)
    if model.response_cache is not None:
        told = f"the file allows it, and says that {model.response_cache.repeats:.0%} of requests were asked before"
        yield Knob("response_cache.enable", "true", told)
    yield Knob("model_warmup", "1", "an instance computes once before it counts as ready")


def _waiting_knobs(model: OnnxModel, choice: Candidate) -> Iterator[Knob]:
    batching = choice.served.batching
    yield Knob(
        "dynamic_batching.max_queue_delay_microseconds",
        str(batching.delay // 1000),
        _pinned(model.queue_delay)
        or (
            f"waiting up to {show_duration(batching.delay)} for more fills batches and leaves most of the targets"
            if batching.delay
            else "a batch leaves as soon as an instance is free: what comes meanwhile makes the next one"
        ),
    )
    yield Knob(
        "dynamic_batching.preferred_batch_size",
        ", ".join(map(str, batching.preferred or (batching.max_batch_size,))),
        "half a batch need not wait any longer"
        if batching.preferred
        else "the largest alone: smaller ones would leave without those that wait",
    )


def _level_knobs(spec: Spec, choice: Candidate, cards: tuple[int, ...]) -> Iterator[Knob]:
    batching = choice.served.batching
    if batching.levels:
        order = ", ".join(f"{at} {tier}" for at, tier in enumerate(spec.tiers, start=1))
        yield Knob(
            "dynamic_batching.priority_levels",
            str(len(batching.levels)),
            f"{order}: requests send their level as `priority`; queue_timeout and max_queue of each are the file's",
        )
        yield Knob("dynamic_batching.default_priority_level", "1", "of requests that name none: the first of the file")
    elif any(tier.queue_timeout or tier.max_queue for tier in spec.tiers.values()):
        sleeps = "with levels or bounds Triton's batcher may sleep up to 500 ms beside its only instance"
        leaks = "with a delay and a timeout Triton's batcher slows down for as long as it runs (server issue 8870)"
        several = batching.instances * max(1, len(cards)) > 1
        timeout = any(tier.queue_timeout for tier in spec.tiers.values())
        why = leaks if batching.delay and timeout else "they would cost more of the targets"
        why = why if several else sleeps
        told = f"left out, and with them queue_timeout and max_queue: {why}"
        yield Knob("dynamic_batching.priority_levels", "", told)


def _warm_up(facts: OnnxFacts) -> WarmUp:
    """One request of zeros; of a picture its pixels, for zeros are no encoded picture."""
    wanted = [tensor for tensor in facts.inputs if facts.feed != "image" or tensor.name == PIXELS]
    free = facts.size or 8
    return WarmUp(
        1,
        tuple(
            Tensor(tensor.name, tensor.data_type, tuple(free if dim < 0 else dim for dim in tensor.dims))
            for tensor in wanted
        ),
    )


def _where(cards: tuple[int, ...]) -> str:
    if not cards:
        return "on the CPU"
    return f"on card {cards[0]}" if len(cards) == 1 else f"on each of the cards {', '.join(map(str, cards))}"


def _pinned(value: object) -> str | None:
    return None if value is None else "from the file"
