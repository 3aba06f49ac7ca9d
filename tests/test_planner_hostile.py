"""Files that ask too much, too little or against themselves: refused with the numbers, or planned; never a trace."""

from __future__ import annotations

import re

import pytest
from planning import engine, llm, profile

from config_gen.facts import Facts, OnnxFacts
from config_gen.plan import Plan
from config_gen.planning.plans import plan
from config_gen.planning.wishes import PlanError
from config_gen.sla.spec import parse

FILE = """
gapless: 1
hardware: {hardware}
tiers: {{interactive: {{weight: 8, queue_timeout: 2s, max_queue: 64}}, batch: {{weight: 1}}}}
models:
"""
CPU = "{gpus: [], cores: 2}"
LENGTH = "length: {median: 40, p95: 128}"
SMALL = engine(fixed=0.4, per_token=0.0005, gpu=True)
FAST = engine(fixed=0.4, per_token=0.0005, memory=1800, gpu=True)


def chat(*more: str, rate: str = "1/s", length: int = 1024, traffic: bool = True) -> str:
    sent = "prompt: {median: 60, p95: 200}, output: {median: 16, p95: 40}"
    fields = [
        "kind: llm",
        "source: wheel:some",
        f"max_model_len: {length}",
        "targets: {interactive: {ttft: 1s}}",
        *more,
    ]
    fields += [f"traffic: {{interactive: {{rate: {rate}, {sent}}}}}"] * traffic
    return f"  chat: {{{', '.join(fields)}}}\n"


def embed(*more: str, name: str = "embed", traffic: str = f"rate: 20/s, {LENGTH}", e2e: str = "100ms") -> str:
    fields = ["kind: onnx", "source: wheel:other", f"targets: {{interactive: {{e2e: {e2e}}}}}", *more]
    fields += [f"traffic: {{interactive: {{{traffic}}}}}"] * bool(traffic)
    return f"  {name}: {{{', '.join(fields)}}}\n"


def planned(*models: str, hardware: str = CPU, **facts: Facts) -> Plan:
    return plan(parse(FILE.format(hardware=hardware) + "".join(models)), facts)


def refused(*models: str, hardware: str = CPU, **facts: Facts) -> list[str]:
    with pytest.raises(PlanError) as caught:
        planned(*models, hardware=hardware, **facts)
    return str(caught.value).splitlines()


def parameters(found: Plan, name: str = "chat") -> dict[str, str]:
    [model] = [model for model in found.models if model.name == name]
    return dict(model.parameters or {})


def test_models_that_nothing_is_sent_to_are_planned() -> None:
    found = planned(chat(traffic=False), embed(traffic=""), chat=llm(), embed=engine())
    assert found.held and not found.predictions
    assert all(knob.reason for model in found.models for knob in model.knobs if knob.value)
    beside = planned(chat(), embed(traffic=""), chat=llm(), embed=engine())
    assert [one.model for one in beside.predictions] == ["chat"] and beside.held


@pytest.mark.parametrize(
    ("model", "feed", "told"),
    [
        (embed(traffic="rate: 20/s"), "text", "is missing; the model takes texts"),
        (embed(), "image", "is not allowed; the model takes no texts"),
    ],
)
def test_lengths_are_given_where_texts_are_sent(model: str, feed: str, told: str) -> None:
    facts = OnnxFacts(profile(text=feed == "text"), (), (), feed, 32, 600 * 2**20)
    [line] = refused(model, embed=facts)
    assert line.startswith("models.embed.traffic.interactive.length: ") and told in line


def test_an_engine_for_a_gpu_needs_one() -> None:
    [line] = refused(embed(), embed=FAST)
    assert line.startswith("models.embed: its engine was built for a card, and hardware.gpus names none")


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ([chat(), embed()], "(chat 0.83, embed 0.59), and it has 1.00 GiB"),
        ([embed(), embed(name="other")], "1.17 GiB of the host (embed 0.59, other 0.59)"),
        ([embed("instances: 2")], "(embed 1.17)"),
        ([embed("response_cache: {repeats: 0%, size: 2GiB}")], "response_cache of embed 2.00"),
        ([chat("swap_space: 2GiB")], "swap_space of chat 2.00"),
    ],
)
def test_what_is_side_by_side_fits_the_host(models: list[str], told: str) -> None:
    names = re.findall(r"^  (\w+):", "".join(models), re.MULTILINE)
    facts = {name: llm() if name == "chat" else engine() for name in names}
    [line] = refused(*models, hardware="{gpus: [], cores: 2, memory: 1GiB}", **facts)
    assert line.startswith("hardware.memory: the models take at least ") and told in line


@pytest.mark.parametrize(
    ("hardware", "most"), [("{gpus: [], memory: 2GiB}", "1.21"), ("{gpus: [{type: some, memory: 4GiB}]}", "2.81")]
)
def test_pages_that_are_pinned_fit(hardware: str, most: str) -> None:
    facts = llm(gpu="some" in hardware)
    [line] = refused(chat("kv_cache_memory: 900GiB"), hardware=hardware, chat=facts)
    assert line.startswith("models.chat.kv_cache_memory: 900.00 GiB do not fit") and f"at most {most} GiB" in line
    assert parameters(planned(chat(f"kv_cache_memory: {most}GiB"), hardware=hardware, chat=facts))


def test_instances_fit_the_card() -> None:
    card = "{gpus: [{type: some, memory: 4GiB}]}"
    [line] = refused(embed("instances: 200"), hardware=card, embed=FAST)
    assert "200 instances take 351.6 GiB, and a card has 3.6 GiB" in line
    heavy = embed(traffic=f"rate: 9000/s, {LENGTH}", e2e="3ms")
    [model] = planned(heavy, hardware=card, embed=FAST).models
    assert model.batching is not None and model.batching.instances * 1800 <= 0.9 * 4096
    assert model.memory <= 0.9 * 4 * 2**30


@pytest.mark.parametrize("sharing", ["auto", "mps", "time-slice"])
def test_pages_are_what_the_others_on_the_card_leave(sharing: str) -> None:
    card = f"{{gpus: [{{type: some, memory: 4GiB}}], sharing: {sharing}}}"
    facts: dict[str, Facts] = {
        "chat": llm(2.0, 0.02, weights=2300, gpu=True),
        "embed": engine(fixed=0.4, per_token=0.0005, gpu=True),
    }
    found = planned(chat(length=8192), embed(), hardware=card, **facts)
    pool = found.models[0].memory - 2300 * 2**20
    assert found.cards == 1 and pool >= 8192 * 46_080
    assert sum(model.memory for model in found.models) <= 0.9 * 4 * 2**30


def test_what_is_pinned_of_the_steps_is_kept() -> None:
    for tokens in (4, 24, 100):
        found = parameters(planned(chat(f"max_num_batched_tokens: {tokens}"), chat=llm()))
        assert int(found["max_num_batched_tokens"]) == tokens
        assert int(found["max_num_seqs"]) <= tokens


def test_fewer_cores_than_it_was_measured_on_take_longer() -> None:
    def itl(cores: int) -> float:
        found = planned(chat(rate="0.01/s"), hardware=f"{{gpus: [], cores: {cores}}}", chat=llm(cores=4))
        return found.predictions[0].predicted

    assert itl(8) == itl(4)
    assert itl(2) == pytest.approx(2 * itl(4), rel=0.3)


def test_a_flood_is_planned_without_drawing_ten_minutes_of_it() -> None:
    found = planned(chat("max_num_seqs: 8", "max_num_batched_tokens: 128", rate="1000000/s"), chat=llm())
    [why] = [knob.reason for knob in found.models[0].knobs if knob.name == "parameters.max_model_len"]
    assert not found.held and "the longest of ten thousand requests of this traffic" in why


def test_a_target_of_a_nanosecond_is_told_as_one() -> None:
    [line] = refused(embed(e2e="1ns"), embed=engine())
    assert line.startswith("models.embed.targets.interactive.e2e: 1 ns cannot be kept")
    [line] = refused(embed(e2e="40us"), embed=engine())
    assert "40 µs cannot be kept" in line
