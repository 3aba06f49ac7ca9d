"""The log of steps: entries beside what an observer sees for itself, in memory and in a file that is bounded."""

from __future__ import annotations

import json
import queue
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from logged import CONFIG, MS, Logged, ask, busy
from tiny_models import random_model, save_hf

from builders.llm import build_llm
from decode.assembly import build_service
from decode.config import ConfigError
from decode.draft import Draft
from decode.executors.cost_model import work_of
from decode.executors.gpu_cost import StepWork
from decode.options import ServiceOptions
from decode.plan import Finished, Rejected, Started, StepPlan, Submit
from decode.scheduler import Scheduler
from decode.step_file import MARK, MOST, StepFile, StepFileError, law_steps, newest, read
from decode.step_log import Entry, Part, steps
from decode.stream import Output
from decode.text import Tokenizer
from decode.types import Request, SamplingParams


@pytest.mark.parametrize("seed", range(4))
def test_entries_say_what_an_observer_sees(seed: int) -> None:
    run = busy(seed).run()
    assert len(run.entries) == len(run.rounds)
    swaps = preemptions = 0
    for entry, seen, events, stats in zip(run.entries, run.rounds, run.events, run.stats, strict=True):
        plan = seen.plan or StepPlan(0, ())
        assert (entry.step, entry.work) == ((plan.step, work_of(plan)) if seen.plan else (None, None))
        assert entry.parts == tuple(Part(c.seq, c.start, len(c.tokens)) for c in plan.chunks)
        submitted = [item.request for item in seen.inputs if isinstance(item, Submit)]
        assert [(c.id, c.tier, c.prompt) for c in entry.came] == [(r.id, r.tier, len(r.prompt)) for r in submitted]
        started = [(event.request_id, event.cached) for event in events if isinstance(event, Started)]
        assert [(one.id, one.cached) for one in entry.started] == started
        ended = [(e.request_id, e.usage.output_tokens, e.reason) for e in events if isinstance(e, Finished)]
        refused = [(e.request_id, 0, e.reason) for e in events if isinstance(e, Rejected)]
        assert sorted((one.id, one.output, one.reason) for one in entry.gone) == sorted(ended + refused)
        assert entry.running == stats.running and entry.waiting == tuple(stats.waiting.values())
        assert entry.pages == stats.pages_used and entry.idle == (stats.running + sum(entry.waiting) == 0)
        preemptions += len(entry.preempted)
        swaps += sum(saved for _, saved in entry.preempted)
        assert (preemptions, swaps) == (stats.preemptions, stats.swaps)
    assert preemptions > 0 and swaps > 0, "the load is to be hard enough"
    reasons = Counter(one.reason for entry in run.entries for one in entry.gone)
    assert reasons["length"] > 0 and sum(reasons.values()) == 40


def test_moments_are_those_at_which_phases_began() -> None:
    """The clock moves by 700 ns at each look, and by the step's time."""
    run = Logged([(5 * MS, ask("a", 30, 2))]).run()
    epoch = {entry.began - seen.now for entry, seen in zip(run.entries, run.rounds, strict=True)}
    assert len(epoch) == 1, "one clock, set once"
    assert [entry.step for entry in run.entries] == [0, 1, 2]  # a budget of 24: two chunks, and a second token
    for entry in run.entries:
        planned, executed, ended = entry.planned, entry.executed, entry.ended
        assert (planned, executed - planned) == (700, 4 * MS + 700)
        # commit reads the clock once, and events are handed out where there are any; then the round ends
        assert ended - executed == (1400, 2100)[entry.step != 0 or bool(entry.started)]
    first, last = run.entries[0], run.entries[-1]
    assert [(one.id, one.seq, one.prompt) for one in first.started] == [("a", 0, 30)]
    assert first.began - first.started[0].arrived == 700 and [(g.id, g.output) for g in last.gone] == [("a", 2)]


def test_a_failed_step_says_why_and_who_ended() -> None:
    run = Logged([(0, ask("a", 3, 5)), (0, ask("b", 3, 5))]).run(fails=[1])
    assert [entry.error for entry in run.entries] == ["", "step 1 failed: ArithmeticError: planted"]
    assert [(one.id, one.reason) for one in run.entries[1].gone] == [("a", "error"), ("b", "error")]
    assert run.entries[1].parts and run.entries[1].idle


def test_a_round_that_finds_nothing_to_do_for_those_who_wait_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Scheduler.plan, count()

    def plan(scheduler: Scheduler, step: int, now: int) -> StepPlan | None:
        if next(calls) != 1:
            return real(scheduler, step, now)
        scheduler.draft = Draft(scheduler.config, scheduler.cache, scheduler.accounts, step, now)
        return None

    monkeypatch.setattr(Scheduler, "plan", plan)
    run = Logged([(0, ask("a", 3, 2)), (900 * MS, ask("b", 3, 1))]).run()
    told = [(entry.step, entry.idle, len(entry.came), len(entry.parts)) for entry in run.entries]
    assert told == [(0, False, 1, 1), (None, False, 0, 0), (1, True, 1, 2)]


def test_a_step_lasts_until_the_next_one_and_the_last_before_a_pause_is_left_out() -> None:
    run = Logged([(0, ask("a", 10, 3)), (900 * MS, ask("b", 10, 2))]).run()
    one, two, _, four, _ = run.entries
    taken = list(steps(run.entries))
    assert [work for work, _ in taken] == [
        StepWork(10, 1, 50, 0, 0, 1),
        StepWork(0, 0, 0, 1, 11, 1),
        StepWork(10, 1, 50, 0, 0, 1),
    ]
    assert [ns for _, ns in taken] == [two.began - one.began, run.entries[2].began - two.began, taken[2][1]]
    assert taken[2][1] == run.entries[4].began - four.began > one.ended


def written(path: Path, run: Logged, most: int = MOST) -> list[Entry]:
    file = StepFile(path, CONFIG, most)
    for entry in run.entries:
        file.take(entry)
    return run.entries


def test_a_file_gives_back_what_was_taken_while_it_is_written_and_without_a_torn_line(tmp_path: Path) -> None:
    path, run = tmp_path / "steps", busy(1).run(fails=[30])
    file = StepFile(path, CONFIG)
    with pytest.raises(StepFileError, match="holds no step yet"):
        read(path)
    assert newest(path) is None
    for number, entry in enumerate(run.entries, 1):
        file.take(entry)
        if number % 20 == 1:
            header, found = read(path)
            assert list(found) == run.entries[:number] and newest(path) == entry
    assert header == (("urgent", "batch"), ())
    assert law_steps(path) == list(steps(run.entries))
    whole = path.read_bytes()
    for cut in (1, 7, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        assert list(read(path)[1]) == run.entries[:-1] and newest(path) == run.entries[-2]


DAMAGE = [
    {"t": "x"}, {"t": None}, {"t": float("nan")}, {"t": float("inf")}, {"t": True}, {"t": 10**30}, {"t": -1},
    {"d": ["a", 1, 2]}, {"d": [None] * 3}, {"d": [1, 2]}, {"d": [3, 2, 1]}, {"d": [-1, 2, 3]}, {"d": [0.5, 1, 2]},
    {"d": {"a": 1, "b": 2, "c": 3}}, {"q": [0.5, 1]}, {"q": 3}, {"q": "ab"}, {"r": None}, {"k": "1"}, {"n": "1"},
    {"w": [1]}, {"w": ["1"] * 6}, {"w": None}, {"c": [1, 2]}, {"c": [1, 2, "x"]}, {"c": 3}, {"e": 5}, {"in": [["a"]]},
    {"in": [[1, "b", 2]]}, {"in": 5}, {"on": [[0, "a", "b", 1, 1]]}, {"on": [[0, "a", "b", 1, 1, -1]]},
    {"off": [1]}, {"off": [[1, 1]]}, {"end": [["a", "b", None]]}, {"end": {"a": 1}},
]  # fmt: skip


@pytest.mark.parametrize("change", DAMAGE, ids=str)
def test_a_line_of_another_shape_is_told_with_its_number(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "steps"
    written(path, Logged([(0, ask("a", 10, 3))]).run())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = json.dumps(json.loads(lines[2]) | change).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(StepFileError, match=r"steps: line 3 is no line of a step log; its writer may have been cut"):
        list(read(path)[1])
    path.write_bytes(b"".join(lines[:3]))
    with pytest.raises(StepFileError, match=r"steps: the last line is no line of a step log"):
        newest(path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"[" * 100_000, "line 3 is no line of a step log"),
        (b"[1e400]", "line 3 is no line of a step log"),
        (b"5", "line 3 is no line of a step log"),
        (
            b'{"t":5,"d":[1,1,1],"r":0,"q":[0,0],"k":0}',
            "line 3 begins before the line before it ended; the file is dam",
        ),
        (b'{"t":5,"d":[1,1,1],"r":0,"q":[0],"k":0}', "line 3 counts waiting requests of 1 tiers, not 2"),
    ],
    ids=lambda it: str(it)[:20],
)
def test_a_line_that_does_not_fit_is_told_with_its_number(tmp_path: Path, line: bytes, told: str) -> None:
    path = tmp_path / "steps"
    written(path, Logged([(0, ask("a", 10, 3))]).run())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line + b"\n"]))
    with pytest.raises(StepFileError, match=f"steps: {told}"):
        list(read(path)[1])


@pytest.mark.parametrize(
    "rest", [b'"tiers":5,"open":[]}', b'"tiers":[1],"open":[]}', b'"tiers":["a"],"open":[[1]]}', b"["]
)
def test_a_header_of_another_shape_is_told(tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "steps").write_bytes(MARK + rest + b"\n")
    with pytest.raises(StepFileError, match=r"steps: is no step log of this version"):
        read(tmp_path / "steps")


def test_a_file_is_bounded_and_keeps_the_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run, most = tmp_path / "steps", busy(2, requests=80).run(), 12_000
    file, sizes = StepFile(path, CONFIG, most), []
    for entry in run.entries:
        file.take(entry)
        sizes.append(sum(it.stat().st_size for it in tmp_path.iterdir()))
    assert most // 2 < max(sizes) <= most
    header, kept = read(path)
    entries = list(kept)
    assert entries == run.entries[-len(entries) :] and len(entries) < len(run.entries) // 2
    before = run.entries[: -len(entries)]
    ended = {one.id for entry in before for one in entry.gone}
    assert list(header.open) == [one for entry in before for one in entry.started if one.id not in ended]
    assert capsys.readouterr().err == f"step_log: {path} is full; {path}.1 keeps what came before\n"
    del file
    StepFile(path, CONFIG)  # one that starts anew leaves nothing of another run
    assert [it.name for it in tmp_path.iterdir()] == ["steps"] and path.stat().st_size == 0


def test_a_full_disk_ends_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("/dev/full"), busy(0).run())
    assert capsys.readouterr().err.splitlines() == [
        "step_log: /dev/full: No space left on device; no more steps are logged"
    ]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step_log: '.*/none/steps' is not allowed \(No such file or directory\)"):
        StepFile(tmp_path / "none" / "steps", CONFIG)


def test_two_engines_do_not_write_to_one_file(tmp_path: Path) -> None:
    path, run = tmp_path / "steps", busy(0).run()
    file = StepFile(path, CONFIG)
    file.take(run.entries[0])
    with pytest.raises(ConfigError, match="steps' is not allowed; another engine writes to it"):
        StepFile(path, CONFIG)
    assert list(read(path)[1]) == run.entries[:1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory; give a file that gapless serve --option step_log=FILE has written"),
        (b"", "holds no step yet; send a request, and try again"),
        (b'{"gapless_ste', "holds no step yet"),
        (b"\x00\xff" * 3 * 2**20, "is no step log of this version; give a file"),
        (b"7 1 21 2 90 3 12345\n", "is no step log of this version"),
        (b'{"gapless_ring":1}\n', "is no step log of this version"),
        (b'{"gapless_steps":2,"tiers":[]}\n', "is no step log of this version"),
        (b'{"gapless_steps":1,"tiers":3}\n', "is no step log of this version"),
    ],
)
def test_what_is_no_step_log_is_told_in_one_line(tmp_path: Path, text: bytes | None, why: str) -> None:
    path = tmp_path / "steps"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(StepFileError) as told:
        read(path)
    assert str(told.value).startswith(f"{path}: {why}") and "\n" not in str(told.value)


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b"\n", b'{"t":1,"d":[1,2],"r":0,"q":[],"k":0}\n', b"\xff\n"])
def test_a_line_that_is_none_of_a_log_is_told_with_its_number(tmp_path: Path, line: bytes) -> None:
    path, run = tmp_path / "steps", busy(0).run()
    written(path, run)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], line, *lines[5:]]))
    with pytest.raises(StepFileError, match=r"steps: line 6 is no line of a step log"):
        list(read(path)[1])


def test_a_served_model_logs_its_steps_where_the_option_says(
    tmp_path: Path, smollm2_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, outputs = tmp_path / "steps", queue.SimpleQueue[Output]()
    tokenizer = Tokenizer.load(smollm2_dir)  # the tiny model has none
    monkeypatch.setattr(Tokenizer, "load", lambda folder: tokenizer)
    model = build_llm(f"hf:{save_hf(random_model('llama'), tmp_path / 'hf')}", tmp_path / "built").out
    service = build_service(model, ServiceOptions(kv_cache_memory=2**22, step_log=str(path)))
    service.submit(Request("a", (5, 6, 7), SamplingParams(max_tokens=3, ignore_eos=True, seed=0)), outputs.put)
    while not outputs.get(timeout=60).final:
        pass
    service.close(10)
    entries = list(read(path)[1])
    assert [entry.step for entry in entries] == [0, 1, 2] and service.stats().steps == 3
    assert [(one.id, one.reason, one.output) for one in entries[-1].gone] == [("a#0", "length", 3)]
