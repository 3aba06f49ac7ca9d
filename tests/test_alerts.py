"""Rules from an SLA file, judged by the real promtool: each kind fires after its time, not before, not in health."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import BROKEN, CASES, HEALTHY, ONSET, READY, SLA, STEP, Case
from prometheus import promtool

from config_gen.sla.spec import parse
from gapless.commands.alerts import texts
from observe import metrics
from observe.alert import span
from observe.alerts import alerts
from observe.alerts_llm import looked_at
from observe.alerts_unary import bound, quantile

MS = 10**6
FIRING = 'count by (alertname, model, tier) (ALERTS{alertstate="firing"})'


def written(case: Case) -> list[dict[str, str]]:
    """A case's series, and those of a server that is up with its models."""
    steps = READY | case.steps
    found = {
        name: f"{calm}x{HEALTHY - 1} {'stale' if broken is None else f'{broken}x{BROKEN}'}"
        for name, (calm, broken) in steps.items()
    }
    for name, (first, calm, broken) in case.grow.items():
        found[name] = f"{first}+{calm}x{HEALTHY - 1} {first + calm * (HEALTHY - 1) + broken}+{broken}x{BROKEN}"
    return [{"series": name, "values": values} for name, values in found.items()]


def expected(labels: dict[str, str]) -> dict[str, Any]:
    told = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {"labels": f"{{{told}}}", "value": 1}


def judged(case: Case) -> dict[str, Any]:
    """A test of promtool: nothing fires in health nor before its time, then this alert and no other."""
    due = ONSET + case.holds
    quiet = [ONSET - STEP, *([ONSET + case.holds - STEP] if case.holds else [])]
    loud = [due + case.needs]
    mine = [expected({"alertname": case.alert, **case.labels})]
    return {
        "interval": f"{STEP}s",
        "input_series": written(case),
        "promql_expr_test": [
            {"expr": FIRING, "eval_time": f"{at}s", "exp_samples": found}
            for times, found in ((quiet, []), (loud, mine))
            for at in times
        ],
    }


def rules(folder: Path, text: str) -> Path:
    (folder / "alerts.yml").write_text(text)
    return folder / "alerts.yml"


def check(folder: Path, text: str, tests: list[dict[str, Any]]) -> None:
    rules(folder, text)
    asked = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{STEP}s", "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(asked))
    promtool("test", "rules", folder / "tests.yml")


def test_each_alert_fires_after_its_time_and_not_before(tmp_path: Path) -> None:
    text = texts(SLA, "sla.yaml")["alerts.yml"]
    assert "SUCCESS" in promtool("check", "rules", rules(tmp_path, text))
    check(tmp_path, text, [judged(case) for case in CASES])
    made = {alert.name for group in alerts(SLA).values() for alert in group}
    assert {case.alert for case in CASES} == made


SENT = "{rate: 1/s, prompt: {median: 9, p95: 9}, output: {median: 9, p95: 9}}"


def test_with_the_target_as_an_edge_a_percentile_is_over_it_exactly_when_that_of_the_requests_is(
    tmp_path: Path,
) -> None:
    """Random requests around random targets, one model each; judged by counting."""
    chance = random.Random(7)
    models, late, series = "", set(), []
    for at in range(24):
        target, percentile = chance.choice([3, 40, 333, 700, 4000, 90_000]), chance.choice([50, 90, 95, 99])
        kept = percentile + chance.choice([-3, -1, 0, 0, 1]) if percentile < 99 else chance.choice([98, 99, 100])
        times = [target * chance.uniform(0.01, 1) for _ in range(kept)]
        times += [target * chance.uniform(1.001, 40) for _ in range(100 - kept)]
        name = f"m{at}"
        models += f"  {name}: {{kind: llm, source: wheel:a, targets: {{a: {{ttft: {target}ms, at: p{percentile}}}}}, "
        models += f"traffic: {{a: {SENT}}}}}\n"
        if sum(time <= target for time in times) < percentile:
            late.add(name)
        of = f'model="{name}",tier="a"'
        for edge in (*metrics.edges(metrics.TTFT, target * MS), float("inf")):
            count = sum(time <= edge * 1000 for time in times)
            le = "+Inf" if edge == float("inf") else f"{edge:g}"
            series.append({"series": f'gapless_ttft_seconds_bucket{{{of},le="{le}"}}', "values": f"0+{count}x80"})
        series.append({"series": f"gapless_ttft_seconds_count{{{of}}}", "values": "0+100x80"})
    text = texts(parse(f"gapless: 1\ntiers: {{a: {{}}}}\nmodels:\n{models}"), "sla.yaml")["alerts.yml"]
    firing = 'count by (model) (ALERTS{alertname="GaplessTtftOverTarget",alertstate="firing"})'
    found = {"expr": firing, "eval_time": "20m", "exp_samples": [expected({"model": name}) for name in sorted(late)]}
    assert 5 < len(late) < 19
    check(tmp_path, text, [{"interval": f"{STEP}s", "input_series": series, "promql_expr_test": [found]}])


def test_a_page_says_the_numbers_of_the_file(tmp_path: Path) -> None:
    name = "{{ $labels.gpu }} {{"
    spec = parse(
        f"gapless: 1\nhardware: {{gpus: [{{type: '{name}', memory: 8GiB, count: 3}}]}}\ntiers: {{a: {{}}}}\n"
        "models: {m: {kind: onnx, source: wheel:a}}"
    )
    text = texts(spec, "sla.yaml")["alerts.yml"]
    [alert] = [one for one in alerts(spec)["machine"] if one.name == "GaplessTensorBusy"]
    told = {"summary": "Card 5: tensor cores are active over 85% of the time"}
    told["description"] = (
        f"90% on host; the file has 3 x {name}. Add a replica on another card: on this one it would only "
    )
    told["description"] += "contend. Ask gapless plan with a higher count what it brings."
    labels = {"gpu": "5", "instance": "host"}
    firing = {"alertname": alert.name, "eval_time": "10m"}
    firing["exp_alerts"] = [{"exp_labels": {"severity": "warning", **labels}, "exp_annotations": told}]
    series = {"series": 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="5",instance="host"}', "values": "0.9x60"}
    check(tmp_path, text, [{"interval": f"{STEP}s", "input_series": [series], "alert_rule_test": [firing]}])


def names(text: str) -> set[str]:
    return {alert.name for group in alerts(parse(f"gapless: 1\n{text}")).values() for alert in group}


def test_only_what_the_file_gives_reason_for_is_watched() -> None:
    machine = {"ServerDown", "ModelNotReady", "ModelRestarted", "HostMemoryShort"}
    onnx, llm = machine | {"Starving", "RequestFailed"}, machine | {"PagesShort", "StepFailed", "Unhealthy"}
    bare = "{kind: onnx, source: wheel:a}"
    bounded = "{kind: onnx, source: wheel:a, traffic: {a: {rate: 1/s}}}"
    sent = f"{{kind: llm, source: wheel:a, traffic: {{a: {SENT}}}}}"
    cards = {"CardsUnseen", "TensorBusy", "CardMemoryShort", "CardFault"}
    for tiers, model, hardware, wanted in (
        ("{}", bare, "[]", onnx),
        ("{}", bare, "[{type: t4}]", onnx | cards),
        ("{max_queue: 9}", bounded, "[]", onnx | {"QueueFull"}),
        ("{queue_timeout: 1s}", bounded, "[]", onnx | {"Refusals"}),
        ("{}", "{kind: llm, source: wheel:a}", "[]", llm),
        ("{}", sent, "[]", llm | {"Starving"}),
        ("{max_queue: 9}", sent, "[]", llm | {"Starving", "Refusals"}),
    ):
        text = f"hardware: {{gpus: {hardware}}}\ntiers: {{a: {tiers}}}\nmodels: {{m: {model}}}"
        assert names(text) == {f"Gapless{name}" for name in wanted}, text


def test_fields_that_mig_lacks_are_not_asked_for() -> None:
    for text in texts(SLA, "sla.yaml").values():
        assert "DCGM_FI_PROF_" in text
        assert not {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_ENC_UTIL"} & {*text.split()}
        assert "_UTIL" not in text


@pytest.mark.parametrize(
    ("at", "rate", "window", "fewest"),
    [
        ("p95", "4/s", 300, 20),  # forty in ten seconds: five minutes are enough
        ("p99", "30/m", 420, 100),  # twice a hundred take 400 s
        ("p99", "1/m", 12_000, 100),
        ("p99", "1/h", 21_600, 3),  # six hours have six: half of them
    ],
)
def test_a_percentile_is_taken_over_as_long_as_it_needs(at: str, rate: str, window: int, fewest: int) -> None:
    model = f"{{kind: llm, source: wheel:a, targets: {{a: {{ttft: 1s, at: {at}}}}}, traffic: {{a: {SENT}}}}}"
    made = parse(f"gapless: 1\ntiers: {{a: {{}}}}\nmodels: {{m: {model.replace('1/s', rate)}}}").models["m"]
    assert looked_at(made.targets["a"].at, made.traffic["a"], "ttft") == (window, fewest)
    assert looked_at(made.targets["a"].at, None, "ttft")[0] == 300


def test_all_requests_together_are_over_the_bound_only_if_a_tier_broke_its_own() -> None:
    """Any mix of tiers that keep their promises keeps the bound: tried on mixes at the very edge of each promise."""
    promises = {"a": (20, 95), "b": (300, 90), "c": (100, 99)}
    targets = "{" + ", ".join(f"{tier}: {{e2e: {ms}ms, at: p{at}}}" for tier, (ms, at) in promises.items()) + "}"
    made = parse(
        "gapless: 1\ntiers: {a: {}, b: {}, c: {}}\n"
        f"models: {{m: {{kind: onnx, source: wheel:a, targets: {targets}}}}}"
    )
    limit, at = bound(dict(made.models["m"].targets))
    assert (limit, at) == (0.3, Fraction(9, 10))
    for counts in ((1, 1, 1), (9, 1, 0), (0, 0, 5), (1, 7, 2)):
        late = within = 0
        for share, (_, kept) in zip(counts, promises.values(), strict=True):
            within, late = within + share * kept, late + share * (100 - kept)
        assert Fraction(within, within + late) >= at
    assert [quantile(Fraction(q, 1000)) for q in (400, 500, 949, 950, 995, 999)] == [
        Fraction(q, 1000) for q in (500, 500, 900, 950, 990, 999)
    ]


def test_edges_hold_the_target_and_one_above_it() -> None:
    assert metrics.edges(metrics.TTFT, None) == metrics.TTFT.buckets == metrics.edges(metrics.TTFT, 500 * MS)
    assert metrics.edges(metrics.TTFT, 700 * MS) == (*metrics.TTFT.buckets[:7], 0.7, *metrics.TTFT.buckets[7:])
    assert metrics.edges(metrics.TTFT, 60_000 * MS) == (*metrics.TTFT.buckets, 120)
    assert metrics.edges(metrics.TTFT, 90_000 * MS) == (*metrics.TTFT.buckets, 90, 180)


def test_durations_as_prometheus_reads_them() -> None:
    assert [span(seconds) for seconds in (0, 0.2, 1.5, 2, 90, 120, 7200)] == [
        "0s",
        "200ms",
        "1500ms",
        "2s",
        "90s",
        "2m",
        "2h",
    ]
