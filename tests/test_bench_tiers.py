"""`bench tiers`: the arithmetic of loads and bars, the declared traffic, and one short run on the real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from plans import chat
from repositories import configure

from config_gen.sla.arrivals import lognormal
from config_gen.sla.spec import Lengths, load
from gapless import tiers, tiers_load
from gapless.bars import Bar, ratio
from gapless.commands import bench_tiers
from gapless.model_files import add_model
from gapless.tiers_predicted import errors
from gapless.tiers_report import bars, lines, predictions, quiet
from loadtest.run import LoadtestError
from loadtest.samples import Sample

ROOT = Path(__file__).resolve().parent.parent
SPEC = load(ROOT / "sla/tiers.yaml")
TRAFFIC = SPEC.models["chat"].traffic
SECOND = 10**9


def sample(tier: str, messages: list[tuple[int, int]], prompt: int = 0, cached: int = 0) -> Sample:
    asked = sum(n for _, n in messages)
    first, end = (messages[0][0], messages[-1][0]) if messages else (None, None)
    return Sample(
        "x", "chat", tier, 0, 0, first, end, tuple(messages), "ok", "", "length", asked, prompt, cached, asked
    )


def test_the_mean_of_a_length_is_that_of_its_draws() -> None:
    lengths, random = Lengths(median=160, p95=640), Random(0)
    drawn = [lognormal(random, lengths) for _ in range(100_000)]
    assert tiers_load.mean(lengths) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)


def test_the_declared_traffic_is_a_quarter_interactive_and_all_tiers_ask_for_as_much_output() -> None:
    assert list(SPEC.tiers) == ["interactive", "api", "batch"] and list(TRAFFIC) == ["interactive", "batch"]
    assert tiers_load.shares(TRAFFIC)["interactive"] == pytest.approx(0.25, abs=0.02)
    parts = [tiers_load.mean(shape.output) / tiers_load.service(shape) for shape in TRAFFIC.values()]
    assert parts[0] == pytest.approx(parts[1], rel=0.1)


def test_a_load_is_a_multiple_of_what_was_measured() -> None:
    sent = tiers_load.offered("mixed", 1.3, 6.0, TRAFFIC)
    assert sum(shape.rate for shape in sent.values()) == pytest.approx(1.3 * 6.0)
    assert sent["interactive"].rate / sent["batch"].rate == pytest.approx(
        TRAFFIC["interactive"].rate / TRAFFIC["batch"].rate
    )
    assert tiers_load.measured("mixed", TRAFFIC) == TRAFFIC


def test_overload_is_the_first_tiers_own_and_batch_asks_for_half_the_machine_beside_it() -> None:
    assert list(tiers_load.measured("overload", TRAFFIC)) == ["interactive"]
    sent = tiers_load.offered("overload", 1.3, 10.0, TRAFFIC)
    assert sent["interactive"].rate == pytest.approx(13.0)
    assert tiers_load.shares(sent)["batch"] == pytest.approx(0.5 / 1.8)


def test_capacity_counts_the_service_of_the_full_batch_only() -> None:
    only = {"interactive": TRAFFIC["interactive"]}
    messages = [(SECOND, 5), (3 * SECOND, 40), (6 * SECOND, 99)]
    burst = [sample("interactive", messages, 300), sample("interactive", [(4 * SECOND, 40)], 36, 16)]
    # Two chunks of 40 tokens and the second prompt; the first prompt was done before, the 99 tokens came after.
    each = tiers_load.service(only["interactive"])
    assert tiers_load.sustains(burst, only, 2 * SECOND, 6 * SECOND) == pytest.approx((40 + 40 + 20) / 4 / each)
    cut_off = [sample("interactive", [(4 * SECOND, 10)])]
    prompt = each - tiers_load.mean(only["interactive"].output)
    assert tiers_load.sustains(cut_off, only, 2 * SECOND, 6 * SECOND) == pytest.approx((prompt + 10) / 4 / each)
    with pytest.raises(LoadtestError, match="no token came back in 1 s"):
        tiers_load.sustains(burst, only, 7 * SECOND, 8 * SECOND)


def test_service_is_what_was_computed_while_the_load_lasted() -> None:
    taken = [sample("a", [(SECOND, 1), (2 * SECOND, 4), (9 * SECOND, 7)], 20, 16), sample("b", [(3 * SECOND, 1)], 30)]
    assert tiers.served(taken, 2 * SECOND) == {"a": (5 + 4) / 2, "b": 0.0}


def test_an_overload_leaves_output_undone() -> None:
    assert tiers.undone([sample("a", [(SECOND, 3), (5 * SECOND, 1)])], 2 * SECOND) == 0.25
    assert quiet("mixed", [{"weighted": {"undone": 0.0}, "fcfs": {"undone": 0.23}}]) is None
    assert "only 5%" in str(quiet("mixed", [{"fcfs": {"undone": 0.05}}]))
    assert quiet("promise", [{"weighted": {"undone": 0.0}}]) is None


def ran(ttft: float | None, itl: float | None, rates: tuple[float, float], late: float = 0.0) -> dict[str, Any]:
    first = {"ttft_ms": {"p99": ttft}, "itl_ms": {"p99": itl}, "ttft_over_target": late}
    first |= {"itl_over_target": 0.02, "output_tokens_per_s": rates[0]}
    return {"tiers": {"i": first, "b": {"output_tokens_per_s": rates[1]}}, "output_tokens_per_s": sum(rates)}


def test_bars_are_ratios_to_the_other_policy() -> None:
    found = bars("mixed", [{"fcfs": ran(1000, 200, (10, 90)), "weighted": ran(300, 150, (15, 75))}], "i", "b")
    assert [(bar.value, bar.held) for bar in found] == [(0.3, True), (0.75, False), (0.9, False)]
    told = lines(found, [])[3:]
    assert told[0] == "held    TTFT P99 of i, weighted over fcfs: 0.300 (limit <= 0.35)"
    assert told[1].startswith("MISSED  ITL P99 of i")


def test_batch_under_weights_over_nothing_is_infinite_and_json_knows_it() -> None:
    rounds = [{"priority": ran(1, 1, (9, other)), "weighted": ran(1, 1, (9, 3))} for other in (0, 0, 1)]
    [bar] = bars("overload", rounds, "i", "b")
    assert bar.held and bar.as_json()["value"] is None and bar.values == [None, None, 3.0]
    assert "∞ (limit >= 1.5; rounds ∞, ∞, 3.000)" in lines([bar], [])[3]


def test_a_promise_counts_requests_and_gaps() -> None:
    found = bars("promise", [{"weighted": ran(1, 1, (1, 1), late=0.005)}], "i", "b")
    assert [(bar.value, bar.held) for bar in found] == [(0.005, True), (0.02, False)]


def test_predictions_are_compared_tier_by_tier() -> None:
    def run(ttft: float | None, rate: float) -> dict[str, Any]:
        tier = {"ttft_ms": {"p50": ttft, "p99": 80.0}, "e2e_ms": {}, "output_tokens_per_s": rate}
        return {"tiers": {"i": tier}, "output_tokens_per_s": rate}

    found = errors(run(44.0, 90.0), run(40.0, 100.0))
    assert found["i"]["ttft p50"] == pytest.approx(0.1) and found["i"]["ttft p99"] == 0
    assert found["i"]["e2e p50"] is None and found["all"]["tokens/s"] == pytest.approx(-0.1)
    assert errors(run(None, 0.0), run(40.0, 100.0))["i"]["ttft p50"] is None
    said = {"errors": found, "steps": {"median": 0.021, "p95": 0.15, "steps": 9}}
    table = predictions([{"fcfs": {"simulated": {"others": said, "own": said}}}])
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == ["fcfs", "others", "i", "+10.0%", "+0.0%", "-", "-", "-10.0%", ""]
    assert cells[-1][1] == "2.1%/15.0%"


def test_ratios_with_a_request_that_never_got_there() -> None:
    assert ratio(None, 3.0) is None and ratio(3.0, None) == 0.0 and ratio(0.0, 0.0) == 1.0
    assert not Bar("x", [None], "<=", 0.35).held


def test_policies_are_compared_only_when_both_ran() -> None:
    assert bars("mixed", [{"weighted": ran(1, 1, (1, 1))}], "i", "b") == []


def test_a_short_run_on_the_real_server(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = tmp_path / "model_repository" / "chat" / "1"
    version.mkdir(parents=True)
    add_model("llm", version)
    for built in smollm2_dir.glob("[!.]*"):
        os.link(built, version / built.name)
    configure(tmp_path / "model_repository", chat())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tiers, "BURST", 3 * SECOND)
    monkeypatch.setattr(tiers, "LIGHT_FOR", 5 * SECOND)
    found_capacity = []

    def capacity(*args: Any) -> tuple[float, Any]:
        """The real one is called; the load of this test is fixed, however busy the machine is."""
        sustained, predictor = real_capacity(*args)
        found_capacity.append(sustained)
        return 6.0, predictor

    real_capacity = tiers.capacity
    monkeypatch.setattr(tiers, "capacity", capacity)
    with pytest.raises(typer.Exit) as left:
        bench_tiers.run(
            ROOT / "sla/tiers.yaml", "mixed", "fcfs,weighted", "fp32", 0.5, 5 * SECOND, json_file=tmp_path / "o.json"
        )
    [case] = json.loads((tmp_path / "o.json").read_text())["results"]
    # Half of capacity is no overload, so there is no verdict; on a machine busy enough it is one.
    held = all(bar["held"] for bar in case["bars"]) and not case["no_verdict"]
    assert len(case["bars"]) == 3 and left.value.exit_code == (0 if held else 1)
    [round_] = case["rounds"]
    policies = ("fcfs", "weighted")
    for policy in policies:
        found = round_[policy]
        assert {t: (n["ok"], n["rejected"], n["failed"]) for t, n in found["tiers"].items()} == {
            t: (n["sent"], 0, 0) for t, n in found["tiers"].items()
        }
        simulated = found["simulated"]["others"]
        assert simulated["tiers"]["batch"]["sent"] == found["tiers"]["batch"]["sent"]
        # The server counts them now and then, and the log has none before a pause.
        assert simulated["steps"]["steps"] == pytest.approx(found["server"]["gapless_steps_total"], rel=0.5)
        assert found["simulated"]["own"]["tiers"]["batch"]["sent"] == found["tiers"]["batch"]["sent"]
        assert len((tmp_path / f"out/bench/tiers/fp32-mixed-{policy}-0.jsonl").read_text().splitlines()) == sum(
            n["sent"] for n in found["tiers"].values()
        )
    assert round_["fcfs"]["tiers"]["interactive"]["sent"] == round_["weighted"]["tiers"]["interactive"]["sent"]
    assert found_capacity[0] > 0 and sum(case["rates_per_s"].values()) == pytest.approx(0.5 * 6)
    assert "sent 0.5 times that for 5 s" in capsys.readouterr().out
