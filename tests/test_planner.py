"""Plans: cheapest first, deterministic, monotone; the impossible is refused with numbers, a miss comes with advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import engine, llm, pictures

from config_gen.facts import Correction, Facts
from config_gen.plan import Plan
from config_gen.planning.plans import plan
from config_gen.planning.unary_search import preparing
from config_gen.planning.wishes import PlanError
from config_gen.profile import Prepare
from config_gen.simulation.batcher import Arrived
from config_gen.simulation.device import COLD
from config_gen.simulation.serving import FRONT, HANDOVER, WAKING
from config_gen.sla.spec import parse

FILE = """
gapless: 1
hardware: {{gpus: {gpus}, sharing: {sharing}, cores: {cores}}}
tiers: {{interactive: {{weight: 8, queue_timeout: 2s, max_queue: 64}}, batch: {{weight: 1, idle_below: 40%}}}}
models:
"""
CHAT = """  chat:
    kind: llm
    source: wheel:some
    max_model_len: 1024
    targets: {{interactive: {{ttft: {ttft}, itl: {itl}}}}}
    traffic: {{interactive: {{rate: {rate}/s, prompt: {{median: 60, p95: 200}}, output: {{median: 8, p95: 20}}}}}}
"""
EMBED = """  {name}:
    kind: onnx
    source: wheel:other
    targets: {{interactive: {{e2e: {e2e}}}}}
    traffic: {{interactive: {{rate: {rate}/s, length: {{median: 40, p95: 128}}}}}}
"""


def spec(*models: str, gpus: str = "[]", sharing: str = "auto", cores: int = 2) -> str:
    return FILE.format(gpus=gpus, sharing=sharing, cores=cores) + "".join(models)


def embed(rate: float = 20, e2e: str = "100ms", name: str = "embed") -> str:
    return EMBED.format(name=name, rate=rate, e2e=e2e)


def chat(rate: float = 1, ttft: str = "1s", itl: str = "200ms") -> str:
    return CHAT.format(rate=rate, ttft=ttft, itl=itl)


def planned(text: str, **facts: Facts) -> Plan:
    return plan(parse(text), facts)


def memory(found: Plan) -> int:
    return sum(model.memory * max(1, len(model.gpus)) for model in found.models)


def test_a_light_load_gets_one_instance_and_as_few_pages_as_do() -> None:
    found = planned(spec(chat(), embed()), chat=llm(), embed=engine())
    served = {model.name: model for model in found.models}
    assert found.held and found.cards == 0
    assert served["embed"].batching is not None and served["embed"].batching.instances == 1
    assert served["chat"].parameters is not None
    pool = int(served["chat"].parameters["kv_cache_memory"].removesuffix("MiB"))
    assert 1024 * 46_080 / 2**20 <= pool <= 256
    assert all(found.predicted <= found.stressed * 1.1 for found in found.predictions)


def test_what_one_instance_does_not_keep_two_do() -> None:
    # Runs are half parallel: two instances with a core each do more work in the same time than one with both.
    rates = {}
    for rate in (50, 300):
        [model] = planned(spec(embed(rate, "60ms")), embed=engine()).models
        assert model.batching is not None
        rates[rate] = model.batching.instances
    assert rates == {50: 1, 300: 2}


def test_a_plan_is_the_same_every_time() -> None:
    text, facts = spec(chat(2), embed(100)), {"chat": llm(), "embed": engine()}
    assert planned(text, **facts) == planned(text, **facts)


@settings(max_examples=12, deadline=None)
@given(st.floats(5, 400), st.floats(1.0, 4.0), st.sampled_from([20, 40, 80, 160, 320]), st.floats(1.0, 4.0))
def test_a_looser_target_never_costs_more_and_a_higher_rate_never_less(
    rate: float, more: float, target: int, looser: float
) -> None:
    def cost(at: float, e2e: float) -> tuple[bool, int]:
        found = planned(spec(embed(round(at, 3), f"{e2e:.3f}ms")), embed=engine())
        return not found.held, memory(found) if found.held else 0

    base = cost(rate, target)
    assert cost(rate, target * looser) <= base
    assert cost(rate * more, target) >= base


def test_one_card_is_not_taken_as_two() -> None:
    gpus = "[{type: a100-80gb, count: 4}]"
    facts = {"chat": llm(2.0, 0.02, gpu=True), "embed": engine(fixed=0.4, per_token=0.0005, gpu=True)}
    light = planned(spec(chat(2), embed(50), gpus=gpus), **facts)
    assert light.held and light.cards == 1
    assert {model.gpus for model in light.models} == {(0,)}
    heavy = planned(spec(chat(300, "300ms", "40ms"), embed(50), gpus=gpus), **facts)
    assert heavy.held and heavy.cards > 1
    assert len(heavy.models[0].gpus) > 1


def test_models_that_share_a_card_fit_it() -> None:
    gpus = "[{type: small, count: 2, memory: 4GiB}]"
    facts = {"chat": llm(2.0, 0.02, weights=2500, gpu=True), "embed": engine(memory=1800, gpu=True)}
    found = planned(spec(chat(1), embed(20), gpus=gpus), **facts)
    assert found.cards == 2 and {model.gpus for model in found.models} == {(0,), (1,)}


@pytest.mark.parametrize(
    ("text", "facts", "told"),
    [
        (
            spec(embed(e2e="1ms")),
            {"embed": engine()},
            r"models\.embed\.targets\.interactive\.e2e: 1 ms cannot be kept: .* takes 2\.\d ms; allowed: more",
        ),
        (
            spec(chat(itl="10ms")),
            {"chat": llm()},
            r"models\.chat\.targets\.interactive\.itl: 10 ms cannot be kept: .* takes 13 ms; allowed: more than that",
        ),
        (
            spec(chat().replace("max_model_len: 1024", "max_model_len: 1024\n    kv_cache_memory: 32MiB")),
            {"chat": llm()},
            r"models\.chat\.kv_cache_memory: 0\.03 GiB hold less than one request of max_model_len 1024 \(0\.04 GiB at "
            r"46080 bytes a token\); give more, or a smaller max_model_len",
        ),
        (
            spec(chat(), gpus="[{type: tiny, memory: 1GiB}]"),
            {"chat": llm(weights=2000, gpu=True)},
            r"models\.chat: weights of 2\.0 GiB and KV pages of one request .* do not fit the 0\.9 GiB that a card has",
        ),
        (
            spec(embed(), gpus="[{type: tiny, memory: 1GiB}]"),
            {"embed": engine(memory=1500, gpu=True)},
            r"models\.embed: one instance takes 1\.5 GiB, and a card has 0\.9 GiB for it",
        ),
        (
            spec(embed(), embed(name="other"), gpus="[{type: small, memory: 4GiB}]"),
            {"embed": engine(memory=2000, gpu=True), "other": engine(memory=2000, gpu=True)},
            r"models\.other: needs 2\.0 GiB of one card, and 1\.\d GiB are free on the emptiest of 1",
        ),
        (
            spec(chat().replace("max_model_len: 1024", "max_model_len: 9000")),
            {"chat": llm()},
            r"models\.chat\.max_model_len: 9000 is not allowed; the model was made for at most 8192",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(text: str, facts: Mapping[str, Facts], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        planned(text, **facts)


def test_slices_of_a_card_are_refused_for_what_they_are() -> None:
    with pytest.raises(PlanError, match=r"hardware\.sharing: 'mig' cannot be planned as one repository: "):
        planned(spec(embed(), gpus="[{type: a100-80gb}]", sharing="mig"), embed=engine(gpu=True))


def test_an_engine_for_a_card_needs_one() -> None:
    with pytest.raises(PlanError, match=r"models\.embed: its engine was built for a card, and hardware\.gpus"):
        planned(spec(embed()), embed=engine(gpu=True))


def test_models_without_traffic_or_targets_are_served_all_the_same() -> None:
    silent = "  embed: {kind: onnx, source: wheel:other}\n  chat: {kind: llm, source: wheel:some, max_model_len: 512}\n"
    found = planned(spec(silent), embed=engine(), chat=llm())
    assert found.held and not found.predictions and [model.name for model in found.models] == ["embed", "chat"]


def test_the_memory_of_the_host_is_shared_by_all_that_it_holds() -> None:
    small = spec(chat(), embed()).replace("cores: 2", "cores: 2, memory: 1GiB")
    with pytest.raises(
        PlanError, match=r"hardware\.memory: the models take at least 1\.\d+ GiB of the host \(chat .*, embed"
    ):
        planned(small, chat=llm(), embed=engine())


def test_a_pinned_budget_holds_and_no_more_sequences_than_it() -> None:
    pinned = chat().replace("source:", "max_num_batched_tokens: 16\n    source:")
    [model] = planned(spec(pinned), chat=llm()).models
    assert model.parameters is not None and model.parameters["max_num_batched_tokens"] == "16"
    assert int(model.parameters["max_num_seqs"]) <= 16


def test_a_rare_tier_is_judged_as_well() -> None:
    rare = (
        embed(200)
        .replace("traffic: {", "traffic: {batch: {rate: 100/s, length: {median: 40, p95: 128}}, ")
        .replace("interactive: {rate: 200/s", "interactive: {rate: 1/h")
    )
    [found] = planned(spec(rare), embed=engine()).predictions
    assert found.predicted > 1.5e6  # a run alone takes that


def test_a_slow_model_with_a_lax_target_is_not_taken_for_overloaded() -> None:
    slow = planned(spec(embed(3, "20s")), embed=engine(fixed=2500.0))
    assert slow.held


@pytest.mark.parametrize("itl", ["60ms", "120ms", "240ms"])
def test_more_load_on_an_llm_never_costs_less(itl: str) -> None:
    costs = [memory(planned(spec(chat(rate, "900ms", itl)), chat=llm())) for rate in (0.5, 1, 2)]
    assert costs == sorted(costs)


def test_an_llm_on_fewer_cores_than_it_was_measured_on_is_slower_and_told_so() -> None:
    two = planned(spec(chat(0.5)), chat=llm(cores=4))
    four = planned(spec(chat(0.5), cores=4), chat=llm(cores=4))
    assert two.models[0].parameters is not None and two.models[0].parameters["threads"] == "2"
    assert two.predictions[1].predicted > 1.5 * four.predictions[1].predicted


def test_all_that_cannot_be_is_told_at_once() -> None:
    with pytest.raises(PlanError) as error:
        planned(spec(chat(itl="10ms", ttft="5ms"), embed(e2e="1ms")), chat=llm(), embed=engine())
    paths = [line.partition(":")[0] for line in str(error.value).splitlines()]
    assert paths == [
        "models.chat.targets.interactive.ttft",
        "models.chat.targets.interactive.itl",
        "models.embed.targets.interactive.e2e",
    ]


def test_what_no_plan_keeps_comes_with_what_would_do() -> None:
    found = planned(spec(embed(900, "40ms")), embed=engine())
    assert not found.held
    assert any(re.match(r"\d0% of the declared rates are served within all targets", line) for line in found.advice)
    [more] = [line for line in found.advice if line.startswith("hardware: ")]
    cores = int(more.split()[1])
    assert planned(spec(embed(900, "40ms"), cores=cores), embed=engine()).held


def test_a_missed_target_is_told_with_one_that_is_kept() -> None:
    text = spec(chat(1, "1s", "16ms"))
    found = planned(text, chat=llm())
    assert not found.held
    [line] = [line for line in found.advice if line.startswith("models.chat.targets.interactive.itl: ")]
    number = re.search(r"a target of ([\d.]+ m?s)", line)
    assert number is not None
    looser = planned(spec(chat(1, "1s", number[1].replace(" ", ""))), chat=llm())
    assert looser.held


def test_smaller_weights_are_advised_where_a_model_misses_and_has_them() -> None:
    found = planned(spec(chat(1, "1s", "16ms"), embed(5)), chat=llm(), embed=engine())
    assert not found.held
    assert [line for line in found.advice if "may do" in line] == [
        "models.chat.weights: int8 may do; build it with --profile and plan again"
    ]


def test_what_is_pinned_stays() -> None:
    pinned = embed().replace("source:", "instances: 2\n    queue_delay: 3ms\n    source:")
    [model] = planned(spec(pinned), embed=engine()).models
    assert model.batching is not None
    assert (model.batching.instances, model.batching.delay) == (2, 3_000_000)
    pinned = chat().replace("source:", "max_num_seqs: 5\n    kv_cache_memory: 1GiB\n    source:")
    [model] = planned(spec(pinned), chat=llm()).models
    assert model.parameters is not None
    assert (model.parameters["max_num_seqs"], model.parameters["kv_cache_memory"]) == ("5", "1024MiB")


def test_a_correction_makes_a_model_as_much_slower() -> None:
    text = spec(embed(5).replace("source:", "instances: 1\n    queue_delay: 1ms\n    source:"))
    plain = planned(text, embed=engine())
    slow = plan(parse(text), {"embed": engine()}, {"embed": Correction(2.0, 5_000_000)})
    [before], [after] = plain.expected, slow.expected
    around = (FRONT + HANDOVER) * COLD + WAKING + 1e6  # of a request that meets no other, the delay among it
    assert after.p50 == pytest.approx(2 * (before.p50 - around) + around + 5e6, rel=0.05)
    assert slow.executing["embed"] > 1.8 * plain.executing["embed"]


def test_a_batch_never_takes_less_to_prepare_than_one_item() -> None:
    """A full batch of 32 pictures on 8 cores: 4 ms of each core, 1 ms for an item alone."""
    facts = pictures()
    facts = replace(facts, profile=replace(facts.profile, prepare=Prepare(1.0, 4.0 / 32)))
    cost = preparing(facts, 8, 1.0)
    found = {count: cost([Arrived(0, 1)] * count) for count in (1, 2, 8, 32)}
    assert {count: (ns - HANDOVER) / 1e6 for count, (ns, _) in found.items()} == {1: 1.0, 2: 1.0, 8: 1.0, 32: 4.0}
    assert [cores for _, cores in found.values()] == [1, 2, 8, 8]


def test_every_setting_has_its_reason() -> None:
    found = planned(spec(chat(), embed()), chat=llm(), embed=engine())
    for model in found.models:
        names = [knob.name for knob in model.knobs]
        assert len(names) == len(set(names)) and all(knob.reason for knob in model.knobs)
        for key, value in (model.parameters or {}).items():
            assert (f"parameters.{key}", value) in [(knob.name, knob.value) for knob in model.knobs]


def test_priority_levels_are_left_out_where_the_batcher_would_sleep_beside_a_free_instance() -> None:
    [model] = planned(spec(embed(20)), embed=engine()).models
    assert model.batching is not None and model.batching.instances == 1 and not model.batching.levels
    [reason] = [knob.reason for knob in model.knobs if knob.name == "dynamic_batching.priority_levels"]
    assert "500 ms" in reason
