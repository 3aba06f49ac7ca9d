"""What samples say over time, against values worked out by hand; and a load cut into windows."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from load_runs import seen

from loadtest.windows import CELLS, Windows, in_flight
from observe import curves, timelines, window
from observe.doctor.llm_facts import llm_facts
from observe.doctor.spans import Span
from observe.series import Series, named
from observe.timelines import Timeline
from observe.window import Window

SECOND, NAN = 10**9, float("nan")


def sampled(*values: dict[str, float], every: float = 1.0) -> Window:
    return window.of_samples((int(at * every * SECOND), one) for at, one in enumerate(values))


def by_name(found: list[Timeline]) -> dict[str, Timeline]:
    return {one.name: one for one in found}


def same(found: np.ndarray, *expected: float) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


def test_a_step_takes_the_time_spent_over_the_steps_made() -> None:
    """Samples every two seconds: 4 steps in 0.2 s, none, 10 in 0.1 s; then the engine began anew: 2 in 0.5 s."""
    totals = [(1.0, 10), (1.2, 14), (1.2, 14), (1.3, 24), (0.5, 2)]
    of = by_name(
        timelines.of_model(
            sampled(
                *(
                    {
                        named("gapless_running", model="chat"): 1,
                        named("gapless_step_seconds_sum", model="chat"): spent,
                        named("gapless_step_seconds_count", model="chat"): steps,
                    }
                    for spent, steps in totals
                ),
                every=2,
            ),
            "chat",
        )
    )
    assert of["step-time"].since and of["step-time"].unit == "ms"
    assert of["step-time"].lines["step"] == pytest.approx([NAN, 50, NAN, 10, 250], nan_ok=True)
    assert same(of["steps"].lines["steps"], NAN, 2, 0, 5, 1)
    assert "preemptions" not in of and "pages" not in of and "waiting" not in of


def test_what_is_inside_an_llm_is_told_by_tier_and_beside_its_bounds() -> None:
    of = by_name(timelines.of_model(seen(), "chat"))
    assert list(of) == ["waiting", "running", "pages", "step-time", "steps"]
    begin, end = 4, 4 + 8 * 4  # the load, in samples: a second after the first one, for eight
    assert set(of["waiting"].lines) == {"interactive", "api"} and of["waiting"].by_tier
    assert [*of["waiting"].lines["interactive"][[begin - 1, begin, end - 1, end]]] == [0, 2, 2, 0]
    assert [*of["running"].limits["slots"]] == [8] * len(of["running"].times)
    assert [*of["pages"].lines["used"][[begin, end]]] == [40, 0]
    assert [*of["pages"].lines["cached, free to take"][[begin, begin + 8, end]]] == [0, 8, 32]
    assert timelines.engine(seen(), "chat") == {"device": "cpu", "policy": "tiers"}
    assert timelines.engine(seen(), "embed") == {} and timelines.of_model(seen(), "embed") == []


def test_a_model_behind_tritons_batcher_by_tritons_own_counters() -> None:
    """5 requests of 8 items in 2 runs, which waited 10 ms together and computed for 40 ms; then nothing."""
    names = ["request_success", "count", "exec_count", "queue_duration_us", "compute_infer_duration_us"]
    counted = [(1, 1, 1, 500, 900), (6, 9, 3, 10_500, 40_900), (6, 9, 3, 10_500, 40_900)]
    labels = {"model": "embed", "version": "1"}
    rows = [
        {named(f"nv_inference_{name}", **labels): float(value) for name, value in zip(names, values, strict=True)}
        | {named("nv_inference_pending_request_count", **labels): pending}
        for values, pending in zip(counted, (0.0, 7.0, 0.0), strict=True)
    ]
    of = by_name(timelines.of_model(sampled(*rows, every=2), "embed"))
    assert same(of["queue"].lines["in the queue"], NAN, 2, NAN)
    assert same(of["queue"].lines["in the model"], NAN, 8, NAN)
    assert same(of["batch"].lines["items"], NAN, 4, NAN)
    assert same(of["pending"].lines["waiting"], 0, 7, 0)


def test_the_machine_by_core_by_process_and_by_gpu() -> None:
    """Two workers of one model count as one, and so do all models that are not asked for.

    A GPU that is there from the second sample on has no value before.
    """
    process = {"process": "model", "model": "chat"}
    rows = [
        {named("host_cpu_percent", core=str(core)): 10.0 * core + at for core in range(11)}
        | {named("host_process_cpu_seconds_total", process="server", pid="1"): 0.5 * at}
        | {named("host_process_cpu_seconds_total", pid=pid, **process): 1.0 * at for pid in ("2", "3")}
        | {named("host_process_cpu_seconds_total", process="model", model=f"m{n}", pid=f"4{n}"): at for n in range(9)}
        | {named("host_process_rss_bytes", pid=pid, **process): 1e9 for pid in ("2", "3")}
        | (
            {named("nvml_utilization_percent", gpu="0"): 30.0, named("nvml_memory_used_bytes", gpu="0"): 2e9}
            if at
            else {}
        )
        for at in range(3)
    ]
    of = by_name(timelines.of_machine(sampled(*rows, every=2.5), ["embed", "chat"]))
    assert list(of["cpu"].faint) == [f"core {core}" for core in range(11)]
    assert same(of["cpu"].lines["mean"], 50, 51, 52)
    assert {name: [*one] for name, one in of["processes"].lines.items()} == {
        "tritonserver": pytest.approx([NAN, 0.2, 0.2], nan_ok=True),
        "model chat": pytest.approx([NAN, 0.8, 0.8], nan_ok=True),
        "other models": pytest.approx([NAN, 3.6, 3.6], nan_ok=True),
    }
    assert same(of["memory"].lines["model chat"], 2, 2, 2)
    assert same(of["gpu"].lines["GPU 0"], NAN, 30, 30) and same(of["gpu-memory"].lines["GPU 0"], NAN, 2, 2)
    assert "gpu-power" not in of


def test_tritons_own_numbers_of_a_gpu_come_first() -> None:
    """They are of the machine that serves; a share becomes percent."""
    row = {
        named("nv_gpu_utilization", gpu_uuid="GPU-b"): 0.25,
        named("nv_gpu_memory_used_bytes", gpu_uuid="GPU-b"): 3e9,
        named("nv_gpu_memory_total_bytes", gpu_uuid="GPU-b"): 8e9,
        named("nvml_utilization_percent", gpu="0"): 99.0,
    }
    of = by_name(timelines.of_machine(sampled(row, row), []))
    assert {name: [*one] for name, one in of["gpu"].lines.items()} == {"GPU 0": [25, 25]}
    assert [*of["gpu-memory"].limits["GPU 0, all"]] == [8, 8]


def test_a_counter_that_comes_up_with_its_first_event_rose_from_zero_unless_the_page_was_away() -> None:
    """The page is there without it, has it, is away, is there again; then the model is unloaded.

    With the model the counter is gone: nothing is known of it. Without a word on the page, other series on it tell.
    """
    up, at = (named("observe_up", source="Triton"), named("gapless_steps_total", model="chat"))
    rows: list[dict[str, float]] = [{up: 1}, {up: 1, at: 7}, {up: 0}, {up: 1, at: 12}, {up: 1, at: 13}, {up: 1}]
    assert same(curves.rises(sampled(*rows), "gapless_steps_total", model="chat"), NAN, 7, NAN, NAN, 1, NAN)
    without = [{at: value} for value in (1.0, 3.0)]
    assert same(curves.rises(sampled({}, *without), "gapless_steps_total"), NAN, NAN, 2)
    other = {named("gapless_running", model="chat"): 1.0}
    assert same(curves.rises(sampled(other, *without), "gapless_steps_total"), NAN, 1, 2)


def test_a_counter_that_comes_up_has_risen_by_as_much_for_all_who_ask() -> None:
    """Three ended before the first sample; four more by the third, the first of another kind among them.

    A process of the machine may have run before it was found.
    """
    page, kind = {named("observe_up", source="Triton"): 1.0}, {"model": "chat", "tier": "a"}
    length, error = (named("gapless_finished_total", reason=reason, **kind) for reason in ("length", "error"))
    used = named("host_process_cpu_seconds_total", process="server", pid="1")
    rows = [{length: 3.0}, {length: 3.0}, {length: 5.0, error: 2.0, used: 9.0}, {length: 6.0, error: 2.0, used: 9.5}]
    found = sampled(*(page | row for row in rows))
    assert same(curves.rises(found, "gapless_finished_total"), NAN, 0, 4, 1)
    assert found.delta("gapless_finished_total") == Span.of(found).total("gapless_finished_total") == 5
    assert found.rate("gapless_finished_total") == pytest.approx(5 / 3)
    assert Span.of(found).rate("gapless_finished_total") == pytest.approx(5 / 3)
    assert found.delta(used.partition("{")[0]) == Span.of(found).total(used.partition("{")[0]) == 0.5
    le = {bound: named("gapless_e2e_seconds_bucket", le=bound, **kind) for bound in ("1", "2", "+Inf")}
    fresh = sampled(page, page | dict.fromkeys(le.values(), 4.0))  # all four within the first bucket
    assert fresh.quantile(0.5, "gapless_e2e_seconds") == Span.of(fresh).quantile(0.5, "gapless_e2e_seconds") == 0.5


def test_of_engines_whose_words_stay_on_the_page_the_one_that_came_last_holds() -> None:
    """Two that were there from the beginning, of which one goes; then a third comes, and the second stays."""
    old, gone, new = (named("gapless_engine_info", model="chat", policy=it) for it in ("fcfs", "priority", "weighted"))
    run = {named("gapless_running", model="chat"): 1.0}
    rows = [{old: 1.0, gone: 1.0}, {old: 1.0}, {old: 1.0, new: 1.0}, {old: 1.0, new: 1.0}]

    def told(*some: dict[str, float]) -> str:
        found = sampled(*(run | row for row in some))
        facts = llm_facts(Span.of(found), "chat", None, lambda span: None)
        assert facts.info["policy"] == timelines.engine(found, "chat")["policy"]
        return facts.info["policy"]

    assert [told(*rows[:count]) for count in (2, 3, 4)] == ["fcfs", "weighted", "weighted"]


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([0, 0.25, 1, 1.9, 2.1, 3, 3.9, 4.05, 4.5], [0, 1.9, 4.5]),  # what is left at the end is too short for itself
        ([0, 0.25, 2, 3, 3.5], [0, 2, 3.5]),
        ([0, 0.5, 0.6], [0, 0.6]),
        ([0, 5, 9, 30], [0, 5, 9, 30]),
        ([7], [7]),
    ],
)
def test_counters_are_read_about_two_seconds_apart(times: list[float], kept: list[float]) -> None:
    of = curves.thinned(window.of_samples((int(at * SECOND), {"x": at}) for at in times))
    assert [*of.times / SECOND] == kept == [*of.values[Series("x")]]


def test_of_nothing_there_are_no_timelines() -> None:
    assert timelines.of_machine(window.of_samples([]), []) == timelines.of_model(window.of_samples([]), "chat") == []


def test_windows_of_a_load_end_with_it_and_rates_are_per_second() -> None:
    windows = Windows.of(loaded=10, ended=11.2, most=5)
    assert [*windows.edges] == [0, 2, 4, 6, 8, 10, 11.2] and windows.length == 2
    assert windows.rate([0, 0.5, 1.9, 2, 10.5, 11.2]) == pytest.approx([1.5, 0.5, 0, 0, 0, 2 / 1.2])
    assert windows.rate([0, 9], [4, 6]) == pytest.approx([2, 0, 0, 0, 3, 0])
    assert [*Windows.of(loaded=10.7, ended=10.7, most=10).edges] == [0, 2, 4, 6, 8, 10.7]  # no sliver at the end
    assert [*Windows.of(loaded=0.01, ended=0.01, most=30).edges] == [0, 0.01]


def test_percentiles_of_a_window_are_those_of_the_definition() -> None:
    windows = Windows.of(loaded=4, ended=4, most=2)
    found = windows.at(Fraction(3, 4), [0.1, 0.2, 0.3, 1.9, 5], [7, 1, 9, 5, 1000])
    assert same(found, 7, NAN)


def test_requests_in_flight_are_those_sent_and_not_ended() -> None:
    random = Random(1)
    sent = [random.uniform(0, 50) for _ in range(200)]
    ended = [at + random.uniform(0, 9) for at in sent]
    moments, numbers = in_flight(sent, ended, 60)
    assert len(moments) == 401 and numbers[-1] == 0
    for at, number in zip(moments, numbers, strict=True):
        assert number == sum(one <= at < end for one, end in zip(sent, ended, strict=True))


def test_of_many_requests_the_most_of_each_stretch_is_shown() -> None:
    random = Random(2)
    sent = [random.uniform(0, 50) for _ in range(5000)]
    ended = [at + random.expovariate(0.2) for at in sent]
    exact, thinned = in_flight(sent[:500], ended[:500], 60), in_flight(sent, ended, 60)
    assert len(exact[0]) == 1001 and len(thinned[0]) == CELLS
    for at, number in list(zip(*thinned, strict=True))[::100]:
        inside = [at, *(it for it in (*sent, *ended) if at <= it < at + 60 / CELLS)]
        brute = max(sum(one <= moment < end for one, end in zip(sent, ended, strict=True)) for moment in inside)
        assert number == brute
