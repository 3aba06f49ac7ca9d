"""From a step log to a trace: what stands in it beside what the engine said, gaps beside a timeline painted by hand."""

from __future__ import annotations

import io
import random
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from logged import CONFIG, MS, Logged, ask, busy
from trace_check import Checked, Slice, check

from config_gen.sla.quantity import show_duration
from decode.executors.gpu_cost import StepWork
from decode.plan import Finished, Rejected, Started, TokenOut
from decode.step_file import Header, StepFile
from decode.step_gaps import Gaps
from decode.step_log import Entry
from gapless.step_trace import StepTrace
from gapless.tracing import write_trace
from observe.ring import Ring
from observe.trace_events import TraceWriter

EMPTY = Entry(0, 0, 0, 0, None, None, (), (), (), (), (), 0, (0,), 0)


def drawn(random: random.Random, count: int) -> list[Entry]:
    """Rounds of a few ns."""
    entries, now = [], 1000
    for number in range(count):
        now += random.choice((0, 0, 1, 9))
        planned = random.choice((0, 1, 5))
        executed = planned + (random.randrange(1, 20) if (stepped := random.random() < 0.7) else 0)
        ended = executed + random.choice((0, 2, 4))
        step, work = (number, StepWork()) if stepped else (None, None)
        entry = EMPTY._replace(began=now, planned=planned, executed=executed, ended=ended, step=step, work=work)
        entries.append(entry._replace(running=random.randrange(2), waiting=(random.randrange(2),)))
        now += ended
    return entries


@pytest.mark.parametrize("seed", range(30))
def test_gaps_are_all_the_time_without_execution_each_with_its_reason(seed: int) -> None:
    entries, gaps = drawn(random.Random(seed), 40), Gaps()
    began, ended = entries[0].began, entries[-1].began + entries[-1].ended
    painted = np.full(ended - began, "host", dtype="<U13")
    for one, following in pairwise(entries):
        reason = "no request" if one.running == one.waiting[0] == 0 else "requests wait" if one.work is None else "host"
        painted[one.began + one.ended - began : following.began - began] = reason
    for entry in entries:
        painted[entry.began + entry.planned - began : entry.began + entry.executed - began] = "execute"
    found = [gap for entry in entries for gap in gaps.add(entry)] + gaps.close()
    again = np.full(ended - began, "execute", dtype="<U13")
    for gap in found:
        assert gap.begin < gap.end and set(again[gap.begin - began : gap.end - began]) == {"execute"}, "twice"
        again[gap.begin - began : gap.end - began] = gap.reason
        assert gap.plan + gap.commit <= (gap.end - gap.begin if gap.reason == "host" else 0)
    assert list(again) == list(painted)
    assert all(a.reason != b.reason for a, b in pairwise(found) if a.end == b.begin), "one gap in two pieces"
    assert sum(gap.commit for gap in found) == sum(entry.ended - entry.executed for entry in entries)


def traced(folder: Path, run: Logged, **more: object) -> tuple[Checked, list[str]]:
    file = StepFile(folder / "steps", CONFIG)
    for entry in run.entries:
        file.take(entry)
    lines = write_trace(folder / "steps", folder / "trace.json", *(more.get(name) for name in ("ring", "last")))  # type: ignore[arg-type]
    return check(folder / "trace.json"), lines


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_shows_every_step_and_gap_and_the_life_of_every_request(tmp_path: Path, seed: int) -> None:
    run = busy(seed).run(fails=[40])
    found, _ = traced(tmp_path, run)
    assert found.process == "gapless steps" and list(found.threads) == ["steps", "gaps"]
    steps = [one for one in found.threads["steps"] if one.name != "no step"]
    assert len(steps) == run.stats[-1].steps == sum(seen.plan is not None for seen in run.rounds)
    assert [one.name for one in steps].index("failed step") == 40
    for one in steps:
        assert [part.name for part in one.inside] == ["plan", "execute", "commit"]
        assert [one.inside[0].begin, *(part.end for part in one.inside)][::3] == [one.begin, one.end]
    plans = [seen.plan for seen in run.rounds if seen.plan is not None]
    assert [len(one.args["chunks"]) for one in steps] == [len(plan.chunks) for plan in plans]
    executing = sum(part.end - part.begin for one in steps for part in one.inside if part.name == "execute")
    idle = sum(gap.end - gap.begin for gap in found.threads["gaps"])
    assert executing + idle == max(one.end for one in found.threads["steps"]), "no time is left out"
    events = [event for some in run.events for event in some]
    ends = {event.request_id: event for event in events if isinstance(event, Finished | Rejected)}
    assert Counter(one.name for one in found.items) == Counter(list(ends))
    for one in found.items:
        end = ends[one.name]
        assert (one.args["end"], one.args.get("output_tokens", 0)) == (
            end.reason,
            end.usage.output_tokens if isinstance(end, Finished) else 0,
        )
        _life(one, run, started={e.request_id for e in events if isinstance(e, Started)})


def _life(one: Slice, run: Logged, started: set[str]) -> None:
    """What a request did, of the plans and events of the engine itself."""
    numbers = {entry.id: entry.seq for seen in run.entries for entry in seen.started}
    chunks = [
        chunk
        for seen in run.rounds
        for chunk in (seen.plan.chunks if seen.plan else ())
        if chunk.seq == numbers.get(one.name)
    ]
    prompt = one.args["prompt_tokens"]
    names = [part.name for part in one.inside]
    assert names[0] == "queue" or (one.begin == one.end) or one.name not in started
    told = [name.split()[1] for name in names if name.split()[0] in ("prompt", "again")]
    assert told == [f"{c.start}+{len(c.tokens)}" for c in chunks if len(c.tokens) > 1 or c.start < prompt]
    assert sum(name in ("preempted", "swapped out") for name in names) == one.args.get("preemptions", 0)
    assert all(a.end <= b.begin for a, b in pairwise(one.inside))
    if one.name in started and one.args["end"] == "length":
        tokens = [e for some in run.events for e in some if isinstance(e, TokenOut) and e.request_id == one.name]
        assert len(tokens) == one.args["output_tokens"] and ("decode" in names) == (len(tokens) > 1)


def test_where_nothing_came_there_is_a_gap_without_a_request_and_its_length_is_told(tmp_path: Path) -> None:
    run = Logged([(0, ask("a", 20, 3)), (2_000 * MS, ask("b", 4, 2))]).run()
    found, lines = traced(tmp_path, run)
    [gap] = [gap for gap in found.threads["gaps"] if gap.name == "no request"]
    last, first = run.entries[2], run.entries[3]
    assert gap.end - gap.begin == first.began - last.began - last.ended
    assert gap.begin + found.began == last.began + last.ended
    span = run.entries[-1].began + run.entries[-1].ended - run.entries[0].began
    executing = sum(entry.executed - entry.planned for entry in run.entries)
    assert lines[0] == f"5 steps of 2 requests in 2.01 s: {executing / span:.1%} executing"
    host = show_duration(span - executing - gap.end + gap.begin)
    told = f"gaps: no request 1.99 s, 99.0% (longest 1.99 s), requests wait never, host {host}, 0.0% (longest 4.2 µs; "
    assert lines[1] == told + "plan 19%, commit 58%, between 23%)"
    assert lines[2] == f"{tmp_path / 'trace.json'}: open it at https://ui.perfetto.dev"
    assert found.counters["running"][-1][1] == {"requests": 0}
    tokens = found.counters["tokens of a step"]
    assert [(one["prompt"], one["decode"]) for _, one in tokens] == [(20, 0), (0, 1), (0, 0), (4, 0), (0, 1)]
    assert tokens[2][0] == gap.begin
    assert found.counters["waiting"] == [(run.entries[0].ended, {"urgent": 0, "batch": 0})], "written once"


def test_the_last_stretch_alone(tmp_path: Path) -> None:
    run, last = busy(3).run(), 150 * MS
    whole, _ = traced(tmp_path, run)
    end = max(one.end for one in whole.threads["steps"])
    found, lines = traced(tmp_path, run, last=last)
    assert found.began == whole.began + end - last
    assert (
        sum(gap.end - gap.begin for gap in found.threads["gaps"])
        + sum(part.end - part.begin for one in found.threads["steps"] for part in one.inside if part.name == "execute")
        == last
    )
    kept = [one for one in whole.items if one.end > end - last]
    assert [one.name for one in found.items] == sorted(
        (one.name for one in kept), key=[one.name for one in found.items].index
    )
    for one in found.items:
        [before] = [it for it in kept if it.name == one.name]
        assert (one.begin, one.end) == (max(0, before.begin - end + last), before.end - end + last)
    assert f"of {len(kept)} requests in 150 ms" in lines[0]
    assert traced(tmp_path, run, last=10**15)[0] == whole


def test_of_a_gap_that_is_cut_off_plan_and_commit_are_no_more_than_what_is_left(tmp_path: Path) -> None:
    """A step is over at 100, 40 of it commit; the next one plans for 50 from 110 on. Of the last 70 ns, 50 are plan."""
    step = EMPTY._replace(work=StepWork(), running=1, waiting=(0, 0))
    first = step._replace(began=1000, planned=10, executed=60, ended=100, step=0)
    second = step._replace(began=1110, planned=50, executed=90, ended=90, step=1)
    trace = StepTrace(TraceWriter(io.StringIO(), "", 1090), Header(("urgent", "batch"), ()), 1090)
    trace.add(first)
    trace.add(second)
    told = trace.close()
    assert (told.total["host"], told.plan, told.commit) == (70, 50, 20)
    assert "plan 71%, commit 29%, between 0%" in told.lines()[1]


def test_requests_that_started_before_the_log_was_full_keep_their_names(tmp_path: Path) -> None:
    run = Logged([(0, ask("early", 4, 76)), *((n * 40 * MS, ask(f"r{n}", 20, 4)) for n in range(12))]).run()
    file = StepFile(tmp_path / "steps", CONFIG, most=8_000)
    for entry in run.entries:
        file.take(entry)
    assert (tmp_path / "steps.1").exists()
    write_trace(tmp_path / "steps", tmp_path / "trace.json", None, None)
    found = check(tmp_path / "trace.json")
    [early] = [one for one in found.items if one.name == "early"]
    assert early.begin == 0 and "output_tokens" in early.args
    chunks = [chunk for one in found.threads["steps"] for chunk in one.args.get("chunks", ())]
    assert not any(chunk.startswith("#") for chunk in chunks) and any(chunk.startswith("early ") for chunk in chunks)


def test_requests_that_go_on_are_shown_up_to_now(tmp_path: Path) -> None:
    run = Logged([(0, ask("a", 20, 30)), (0, ask("b", 20, 30, "batch"))]).run()
    del run.entries[4:]
    found, _ = traced(tmp_path, run)
    now = run.entries[3].began + run.entries[3].ended - found.began
    assert [(one.args["end"], one.end) for one in found.items] == [("still open", now)] * 2


def test_samples_of_the_same_time_stand_beside_the_steps(tmp_path: Path) -> None:
    run = busy(0).run()
    began, last = run.entries[0].began, run.entries[-1]
    ended = last.began + last.ended
    moments = [began - MS, began, (began + ended) // 2, ended, ended + MS]
    with Ring(tmp_path / "ring", 2**20) as ring:
        for number, now in enumerate(moments):
            sample = {'host_cpu_percent{core="0"}': 10.0 * number, 'host_cpu_percent{core="1"}': 50.0, "other": 1.0}
            ring.append(now, sample | ({'nvml_utilization_percent{gpu="0"}': 70.0} if number == 2 else {}))
    found, _ = traced(tmp_path, run, ring=tmp_path / "ring")
    at = [moment - began for moment in moments]
    assert found.counters["CPU"] == [(at[n], {"percent": value}) for n, value in ((1, 30), (2, 35), (3, 40))]
    assert found.counters["GPU 0"] == [(at[2], {"percent": 70.0})] and "other" not in found.counters


def test_what_is_held_does_not_grow_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Logged([(0, ask("a", 4, 1))]).run().entries[0]
    many = (entry._replace(began=entry.began + number * 10 * MS) for number in range(1200))
    header = Header(("urgent", "batch"), ())
    monkeypatch.setattr("gapless.tracing.step_file.read", lambda path: (header, many))
    monkeypatch.setattr("gapless.tracing.step_file.newest", lambda path: entry)
    tracemalloc.start()
    try:
        lines = write_trace(tmp_path / "steps", tmp_path / "trace.json", None, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines[0].startswith("1,200 steps of 1,200 requests in 11.99 s: ")
    assert peak < (tmp_path / "trace.json").stat().st_size // 4
