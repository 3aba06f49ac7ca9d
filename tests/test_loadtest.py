"""Load testing without a server: percentiles, samples, arrivals, prompts, verdicts, reports."""

from __future__ import annotations

import json
from fractions import Fraction
from math import inf
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pytest
from rich.console import Console

from config_gen.percentiles import percentile, samples_needed
from config_gen.sla.arrivals import lognormal
from config_gen.sla.spec import Lengths, LlmModel, LlmTraffic, Targets
from loadtest import samples
from loadtest.capacity import served_requests
from loadtest.prompts import by_words
from loadtest.report import ModelReport, Report, as_json, show
from loadtest.run import Client
from loadtest.samples import Outcome, Sample
from loadtest.schedule import Part, TooManyRequests, schedule
from loadtest.verdict import ClassSummary, Verdict, judge, summarize

SECOND = 10**9
MS = 10**6
GOOD_CLIENT = Client(send_lag=1 * MS, loop_lag=2 * MS, cpu=0.1)
WORDS = by_words()


def sample(
    intended: int = 0,
    messages: tuple[tuple[int, int], ...] = (),
    outcome: Outcome = "ok",
    asked: int = 4,
    tier: str = "api",
) -> Sample:
    return Sample(
        id=f"{tier}-{intended}",
        model="chat",
        tier=tier,
        intended=intended,
        sent=intended,
        first=messages[0][0] if messages else None,
        end=messages[-1][0] if messages else None,
        messages=messages,
        outcome=outcome,
        error="" if outcome == "ok" else "queue of tier api is full",
        finish_reason="length" if outcome == "ok" else "",
        asked=asked,
        prompt_tokens=7,
        cached_tokens=0,
        output_tokens=sum(tokens for _, tokens in messages),
    )


def traffic(rate: float = 5, shared_prefix: int = 0) -> LlmTraffic:
    lengths = {"median": 60, "p95": 200}
    return LlmTraffic.model_validate(
        {"rate": f"{rate}/s", "prompt": lengths, "output": lengths, "shared_prefix": shared_prefix}
    )


def chat(shapes: dict[str, LlmTraffic], max_model_len: int = 4096) -> Part:
    raw = {"kind": "llm", "source": "wheel:x", "max_model_len": max_model_len}
    return Part("chat", LlmModel.model_validate(raw).model_copy(update={"traffic": shapes}), WORDS)


def report(classes: list[ClassSummary], verdicts: list[Verdict], client: Client = GOOD_CLIENT) -> Report:
    return Report(10 * SECOND, 0, 1, client, [ModelReport("chat", classes, verdicts)], ["A note."])


def targets(**given: str) -> Targets:
    return Targets.model_validate(given)


def test_percentiles_are_those_of_the_definition_and_of_numpy() -> None:
    random = Random(1)
    for count in [1, 2, 3, 19, 20, 21, 99, 100, 101, 1000]:
        values = sorted(random.choice([1.0, 2.5, 7.0, 9.75, inf]) for _ in range(count))
        for q in (Fraction(1, 100), Fraction(7, 100), Fraction(1, 2), Fraction(95, 100), Fraction(99, 100)):
            reached = [value for value in values if Fraction(sum(v <= value for v in values), count) >= q]
            assert percentile(values, q) == min(reached)
    finite = sorted(random.random() for _ in range(1009))
    for q in (Fraction(1, 2), Fraction(95, 100), Fraction(999, 1000)):
        assert percentile(finite, q) == np.quantile(finite, float(q), method="inverted_cdf")


def test_a_percentile_needs_enough_samples_to_be_less_than_the_maximum() -> None:
    for q, needed in (
        (Fraction(1, 2), 2),
        (Fraction(95, 100), 20),
        (Fraction(99, 100), 100),
        (Fraction(999, 1000), 1000),
    ):
        assert samples_needed(q) == needed
        assert percentile(range(needed), q) == needed - 2
        assert percentile(range(needed - 1), q) == needed - 2  # the maximum


def test_latencies_count_from_the_intended_time() -> None:
    late = sample(intended=1 * SECOND, messages=((3 * SECOND, 1), (4 * SECOND, 3)))
    assert late.ttft == 2 * SECOND
    assert late.e2e == 3 * SECOND


def test_a_message_of_several_tokens_is_that_many_equal_gaps() -> None:
    one = sample(messages=((100, 1), (160, 3), (200, 1), (200, 2)))
    assert list(one.itl()) == [20, 20, 20, 40, 0, 0]


def test_tokens_that_never_came_are_infinite_gaps() -> None:
    refused = sample(outcome="rejected", asked=4)
    assert list(refused.itl()) == [inf] * 3
    assert refused.ttft == refused.e2e == inf
    broken = sample(messages=((100, 1), (160, 1)), outcome="failed", asked=4)
    assert list(broken.itl()) == [60, inf, inf]
    assert broken.ttft == broken.e2e == inf


def test_raw_samples_survive_the_file(tmp_path: Path) -> None:
    taken = [sample(messages=((100, 1), (160, 3))), sample(intended=5, outcome="rejected")]
    samples.write(tmp_path / "samples.jsonl", taken)
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2
    assert samples.read(tmp_path / "samples.jsonl") == taken


def test_lengths_have_the_declared_median_and_95th_percentile() -> None:
    random = Random(3)
    drawn = sorted(lognormal(random, Lengths(median=100, p95=400)) for _ in range(20_000))
    assert median(drawn) == pytest.approx(100, rel=0.03)
    assert drawn[19_000] == pytest.approx(400, rel=0.05)
    assert {lognormal(random, Lengths(median=8, p95=8)) for _ in range(9)} == {8}


def test_arrivals_are_a_poisson_process_of_the_scaled_rate() -> None:
    planned = schedule([chat({"api": traffic(rate=20)})], 300 * SECOND, 0.5, 0)
    gaps = np.diff([request.at for request in planned]) / SECOND
    assert len(planned) == pytest.approx(3000, rel=0.06)  # three standard deviations
    assert gaps.mean() == pytest.approx(0.1, rel=0.06)
    assert gaps.std() == pytest.approx(0.1, rel=0.1)  # exponential: deviation equals mean
    assert max(request.at for request in planned) < 300 * SECOND


def test_the_seed_fixes_the_schedule_and_tiers_do_not_disturb_each_other() -> None:
    both = schedule([chat({"a": traffic(), "b": traffic()})], 10 * SECOND, 1, 7)
    assert both == schedule([chat({"a": traffic(), "b": traffic()})], 10 * SECOND, 1, 7)
    assert [r for r in both if r.tier == "a"] == schedule([chat({"a": traffic()})], 10 * SECOND, 1, 7)
    assert both != schedule([chat({"a": traffic(), "b": traffic()})], 10 * SECOND, 1, 8)
    assert [request.at for request in both] == sorted(request.at for request in both)
    assert len({request.id for request in both}) == len(both)


@pytest.mark.parametrize(("rate", "seconds"), [(1e6, 60), (6, 99999999 * 3600)])
def test_more_requests_than_can_be_planned_are_refused_at_once(rate: float, seconds: int) -> None:
    with pytest.raises(TooManyRequests, match="at most 1000000 are allowed"):
        schedule([chat({"a": traffic(rate=rate)})], seconds * SECOND, 1, 0)


def test_half_of_the_requests_share_a_system_prompt_and_nothing_else() -> None:
    planned = schedule([chat({"a": traffic(shared_prefix=50)})], 60 * SECOND, 1, 7)
    systems = [request.system for request in planned]
    assert set(systems) == {"", max(systems)}
    assert abs(systems.count("") - len(systems) / 2) <= 1
    assert len({request.text for request in planned}) == len(planned)


def test_no_request_is_longer_than_the_model() -> None:
    for request in schedule([chat({"a": traffic(shared_prefix=50)}, 256)], 60 * SECOND, 1, 7):
        assert len((request.system + request.text).split()) / 0.75 + request.max_tokens <= 256
        assert request.max_tokens >= 1
        assert request.text


def test_prompts_are_english_of_the_wanted_length() -> None:
    for tokens in (1, 2, 40, 1000):
        text = WORDS.draw(Random(tokens), tokens)
        assert len(text.split()) == max(1, round(tokens * 0.75))
    assert WORDS.draw(Random(1), 200).lower().count(" the ") > 5


def ruling(of: list[Sample], client: Client = GOOD_CLIENT, **promise: str) -> list[tuple[str, str]]:
    shape = {"api": traffic()}
    verdicts = judge(summarize(of, ["api"], 10 * SECOND), {"api": targets(**promise)}, shape, client)
    return [(verdict.ruling, verdict.reason) for verdict in verdicts]


def test_a_target_is_judged_at_its_percentile_exactly() -> None:
    hundred = [sample(messages=((number * MS, 1),), asked=1) for number in range(1, 101)]
    assert ruling(hundred, ttft="99ms") == [("kept", "99 ms of 99 ms")]
    assert ruling(hundred, ttft="98ms") == [("missed", "99 ms, not 98 ms: 2 of 100 over")]
    assert ruling(hundred, ttft="95ms", at="p95") == [("kept", "95 ms of 95 ms")]
    assert ruling(hundred, e2e="94ms", at="p95") == [("missed", "95 ms, not 94 ms: 6 of 100 over")]


def test_refused_requests_are_misses() -> None:
    good = [sample(messages=((5 * MS, 1),), asked=1) for _ in range(98)]
    lost = [sample(outcome="rejected", asked=1), sample(outcome="failed", asked=1)]
    assert ruling([*good, *lost[:1], *good[:1]], ttft="10ms") == [("kept", "5 ms of 10 ms")]
    assert ruling([*good, *lost], ttft="10ms") == [
        ("missed", "∞, not 10 ms: 2 of 100 over, 2 of them refused or failed")
    ]


def test_too_few_samples_give_no_verdict_however_good() -> None:
    few = [sample(messages=((5 * MS, 1),), asked=1) for _ in range(99)]
    assert ruling(few, ttft="1s") == [("none", "too few samples: 99, and P99 needs 100; run longer")]
    assert ruling(few, ttft="1s", at="p95")[0][0] == "kept"
    assert ruling([], ttft="1s")[0][0] == "none"


@pytest.mark.parametrize("client", [Client(51 * MS, 0, 0.1), Client(0, 51 * MS, 0.1)])
def test_a_lagging_client_gives_no_verdict(client: Client) -> None:
    hundred = [sample(messages=((5 * MS, 1),), asked=1) for _ in range(100)]
    [(ruled, reason)] = ruling(hundred, client, ttft="1s")
    assert ruled == "none"
    assert "the client itself lagged, the load generator is the bottleneck" in reason
    assert ruling(hundred, client, ttft="1100ms")[0][0] == "kept"  # a twentieth of the target: 55 ms
    found = report(summarize(hundred, ["api"], SECOND), [], client)
    assert not found.held
    assert found.conclusion.startswith("No verdict: the client itself lagged")


def test_a_tier_without_traffic_gives_no_verdict() -> None:
    [verdict] = judge([], {"batch": targets(e2e="1s")}, {}, GOOD_CLIENT)
    assert (verdict.ruling, verdict.reason) == ("none", "no traffic is declared for the tier")


def test_a_summary_counts_what_happened_while_the_load_lasted() -> None:
    taken = [
        sample(messages=((1 * SECOND, 1), (2 * SECOND, 3))),
        sample(messages=((9 * SECOND, 2), (11 * SECOND, 2))),  # ends after the load
        sample(outcome="rejected"),
        sample(messages=((1 * SECOND, 1),), outcome="failed"),
        sample(outcome="rejected"),
    ]
    [summary] = summarize(taken, ["api"], 10 * SECOND)
    assert (summary.sent, summary.ok, summary.rejected, summary.failed) == (5, 2, 2, 1)
    assert (summary.offered, summary.achieved, summary.output_rate) == (0.5, 0.1, 0.7)
    assert summary.errors == {"queue of tier api is full": 3}


def test_the_report_says_the_same_to_people_and_machines() -> None:
    taken = [sample(messages=((5 * MS, 1), (9 * MS, 3))) for _ in range(99)] + [sample(outcome="rejected")] * 2
    classes = summarize(taken, ["api"], 10 * SECOND)
    verdicts = judge(classes, {"api": targets(ttft="10ms", itl="2s", at="p95")}, {"api": traffic()}, GOOD_CLIENT)
    found = report(classes, verdicts)
    told = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert told["held"] is told["models"]["chat"]["held"] is found.held is True
    told = told["models"]["chat"]
    assert told["classes"]["api"]["ttft_s"] == {"p50": 0.005, "p95": 0.005, "p99": None, "samples": 101}
    assert [(v["metric"], v["at"], v["verdict"]) for v in told["verdicts"]] == [
        ("ttft", "p95", "kept"),
        ("itl", "p95", "kept"),
    ]
    console = Console(width=120, record=True)
    show(found, console)
    text = console.export_text()
    assert "sent 101, ok 99, rejected 2, failed 0" in text
    assert "2 × queue of tier api is full" in text
    assert "P95 ≤ 10 ms" in text
    assert "A note." in text
    assert "All 2 promises were kept." in text


def test_a_promise_to_a_tier_that_sends_nothing_is_told_as_well() -> None:
    verdicts = judge([], {"batch": targets(e2e="1s")}, {}, GOOD_CLIENT)
    console = Console(width=120, record=True)
    show(report([], verdicts), console)
    assert "batch E2E: no verdict: no traffic is declared for the tier" in console.export_text()


def test_nothing_promised_is_nothing_kept() -> None:
    found = report([], [])
    assert not found.held
    assert found.conclusion == "No verdict: models.chat.targets declares none."


def test_capacity_counts_cut_requests_by_the_tokens_that_came() -> None:
    whole, half = sample(messages=((1, 4),)), sample(messages=((1, 1), (2, 1)), outcome="failed")
    assert served_requests([whole, whole, half, sample(outcome="failed")]) == 2.5
