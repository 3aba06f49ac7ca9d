"""The decode loop on an event loop is the decode loop of the simulator: alone on a device, request for request."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from config_gen.batching import Batching
from config_gen.percentiles import Counted, percentile
from config_gen.simulation.batcher import Arrived
from config_gen.simulation.device import COLD
from config_gen.simulation.joint import run
from config_gen.simulation.llm_load import requests
from config_gen.simulation.serving import Capacity, Decoding, Load, Unary
from config_gen.sla.arrivals import arrivals
from config_gen.sla.spec import LlmModel, OnnxModel, parse
from decode.config import EngineConfig, TierConfig
from decode.executors.cost_model import Fit, FittedLaw
from decode.outcome import GAP
from decode.simulator import simulate

LAW = FittedLaw(
    12e6, (0, 8, 64), (1.2e6, 0.9e6, 0.55e6), 0.5e6, 300.0, 0.1e6, 2000.0, 0.2e6, Fit(0.0, 0.0, 1, 1), (0.9, 1.0, 1.2)
)
TIERS = (TierConfig("interactive", weight=8, itl=80_000_000), TierConfig("batch", weight=1, idle_below=0.4))
CONFIG = EngineConfig(num_pages=400, max_num_seqs=8, max_model_len=1024, tiers=TIERS)
SPEC = parse("""
gapless: 1
tiers: {interactive: {weight: 8}, batch: {weight: 1, idle_below: 40%}}
models:
  chat:
    kind: llm
    source: wheel:some
    max_model_len: 1024
    traffic:
      interactive: {rate: 4/s, prompt: {median: 60, p95: 200}, output: {median: 16, p95: 40}, shared_prefix: 50}
      batch: {rate: 1/s, prompt: {median: 100, p95: 300}, output: {median: 40, p95: 80}}
  embed:
    kind: onnx
    source: wheel:other
    traffic: {interactive: {rate: 30/s, length: {median: 20, p95: 60}}}
""")
SECONDS = 40


def unprepared(batch: Sequence[Arrived]) -> tuple[float, float]:
    return 0.0, 1.0


@pytest.fixture(scope="module")
def chat() -> LlmModel:
    model = SPEC.models["chat"]
    assert isinstance(model, LlmModel)
    return model


@pytest.fixture(scope="module")
def embed() -> OnnxModel:
    model = SPEC.models["embed"]
    assert isinstance(model, OnnxModel)
    return model


def decoding(chat: LlmModel) -> Decoding:
    return Decoding("chat", chat, "", ("host",), 2.0, CONFIG, LAW)


def test_alone_it_is_the_simulator(chat: LlmModel) -> None:
    drawn = arrivals(chat.traffic, SECONDS * 10**9, 1.0, 0, CONFIG.max_model_len)
    alone = simulate(CONFIG, LAW, requests(drawn, [tier.name for tier in TIERS]), SECONDS * 10**9)
    seen = run([decoding(chat)], {"host": Capacity(2.0)}, Load(SECONDS * 10**9))
    for tier, record in alone.tiers.items():
        assert record.sent > 20
        assert seen.latencies["chat", tier, "ttft"] == sorted(record.ttft)
        assert seen.latencies["chat", tier, "e2e"] == sorted(record.e2e)
        assert list(seen.latencies["chat", tier, "itl"]) == list(Counted(record.gaps, GAP))


def test_another_model_on_the_same_cores_makes_it_slower_and_on_others_does_not(
    chat: LlmModel, embed: OnnxModel
) -> None:
    def beside(device: str) -> float:
        other = Unary(
            "embed", embed, "embed/", (device,), 2.0, Batching(8), unprepared, lambda batch: 15e6, {"interactive": 1}
        )
        devices = {"host": Capacity(2.0), "elsewhere": Capacity(2.0)}
        seen = run([decoding(chat), other], devices, Load(SECONDS * 10**9))
        return percentile(seen.latencies["chat", "interactive", "itl"], Fraction(1, 2))

    alone = run([decoding(chat)], {"host": Capacity(2.0)}, Load(SECONDS * 10**9))
    quiet = percentile(alone.latencies["chat", "interactive", "itl"], Fraction(1, 2))
    assert beside("elsewhere") == quiet
    assert beside("host") > 1.2 * quiet


def test_two_engines_share_what_one_gets(chat: LlmModel) -> None:
    two = Decoding("chat", chat, "", ("a", "b"), 1.0, CONFIG, LAW)
    one = Decoding("chat", chat, "", ("a",), 1.0, CONFIG, LAW)
    devices, load = {"a": Capacity(1.0), "b": Capacity(1.0)}, Load(SECONDS * 10**9, scale=3.0)
    both, single = run([two], devices, load), run([one], devices, load)
    q = Fraction(9, 10)
    ours, theirs = (seen.at("chat", "interactive", "ttft", q) for seen in (both, single))
    assert ours is not None and theirs is not None and ours < theirs
    assert len(both.latencies["chat", "batch", "e2e"]) == len(single.latencies["chat", "batch", "e2e"])


def test_what_was_asked_before_is_answered_from_the_cache(embed: OnnxModel) -> None:
    def served(repeats: float) -> Unary:
        levels = {"interactive": 1}
        batching = Batching(8)
        return Unary("embed", embed, "", ("host",), 2.0, batching, unprepared, lambda batch: 5e6, levels, 1000, repeats)

    load = Load(SECONDS * 10**9)
    hits = run([served(0.25)], {"host": Capacity(2.0)}, load).latencies["embed", "interactive", "e2e"]
    misses = run([served(0.0)], {"host": Capacity(2.0)}, load).latencies["embed", "interactive", "e2e"]
    assert len(hits) == len(misses)
    assert sum(value == 1000 for value in hits) == int(len(hits) * 0.25)
    assert all(value > 5e6 for value in misses)


def test_items_are_prepared_on_the_host_and_computed_elsewhere(chat: LlmModel, embed: OnnxModel) -> None:
    """3 ms of one core, which go first and are cold after a pause, and 1 ms on a card, which another makes longer."""

    def p50(card: str) -> float:
        one = Unary(
            "embed",
            embed,
            "",
            ("card",),
            1.0,
            Batching(1),
            lambda batch: (3e6, 1),
            lambda batch: 1e6,
            {"interactive": 1},
        )
        other = Decoding("chat", chat, "", (card,), 1.0, CONFIG, LAW)
        devices = {name: Capacity(1.0) for name in ("host", "card", "elsewhere")}
        seen = run([one, other], devices, Load(SECONDS * 10**9))
        return percentile(seen.latencies["embed", "interactive", "e2e"], Fraction(1, 2))

    assert p50("elsewhere") == pytest.approx(3e6 * COLD + 1e6)
    assert p50("host") == pytest.approx(4e6)  # steps keep it warm
    assert p50("card") > p50("elsewhere") + 0.5e6
