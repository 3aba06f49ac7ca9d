"""`gapless doctor` as a user meets it: what it prints, how it ends, one line for mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from doctor_scenes import SERIAL
from doctor_series import SECONDS
from doctor_windows import Host, Llm, Tier, texts, written

from gapless.cli import main
from loadtest import recording
from loadtest.recording import Recording, Sent
from loadtest.run import Client
from loadtest.samples import Sample

Doctor = Callable[..., tuple[int, str, str]]
MS = 10**6
SLA = """
gapless: 1
tiers: {interactive: {}, batch: {}}
models: {chat: {kind: llm, source: wheel:any, targets: {interactive: {ttft: 50ms, at: p95}}}}
"""


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command; exit status, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "doctor", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_the_first_sentence_says_what_to_do_and_the_rest_why(doctor: Doctor, tmp_path: Path) -> None:
    ring = written(tmp_path / "ring", texts(SERIAL, Host()))
    status, out, err = doctor(ring)
    assert (status, err) == (1, "")
    assert max(map(len, out.splitlines())) <= 100
    words = " ".join(out.split())
    assert words.startswith("chat: one request at a time; merge requests: give chat max_num_seqs 32 or more")
    order = [
        words.index(part)
        for part in (
            "cause chat: one request at a time, confidence",
            "100% of the samples with requests waiting had no more than one running [gapless_running, gapless_waiting]",
            "Do: merge requests",
            "Explains: chat: requests queue in the scheduler",
            "Checklist Are requests merged, not served one by one? no chat: 0.95 tokens a step",
        )
    ]
    assert order == sorted(order)


def test_a_healthy_server_says_so_and_every_item_of_the_checklists_has_an_answer(
    doctor: Doctor, tmp_path: Path
) -> None:
    ring = written(tmp_path / "ring", texts(Llm(), Host()))
    status, out, err = doctor(ring, "--json", tmp_path / "told.json")
    assert (status, err, out.splitlines()[0]) == (0, "", "Healthy: nothing to mend is seen.")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["healthy"] and told["findings"] == [] and told["count"] == SECONDS
    answers = {check["question"]: check["answer"] for check in told["checklist"]}
    assert len(answers) == 12 and all(check["told"] for check in told["checklist"])
    assert answers["Are requests merged, not served one by one?"] == "yes"
    assert answers["Are tensor cores at work?"] == "unknown"  # of a machine without a GPU it is not "no"


def test_a_hint_alone_is_no_failure(doctor: Doctor, tmp_path: Path) -> None:
    status, out, _ = doctor(written(tmp_path / "ring", texts(Llm(hits=0.0))))
    assert status == 0 and out.startswith("Healthy; a hint: requests share no prefix:")


def test_the_last_stretch_can_be_looked_at_alone(doctor: Doctor, tmp_path: Path) -> None:
    mended, sick = texts(Llm()), texts(SERIAL)
    late = np.arange(SECONDS) >= SECONDS // 2
    both = {text: np.where(late, mended.get(text, np.nan), sick.get(text, np.nan)) for text in {**mended, **sick}}
    ring = written(tmp_path / "ring", both)
    assert doctor(ring, "--last", "50s")[0] == 0
    assert doctor(ring)[0] == 1
    status, _, err = doctor(ring, "--last", "5s")
    assert status == 2 and err == (
        f"gapless: {ring}: holds 6 samples over 5 s; at least 10 over 10 s are needed, and a minute or more is better\n"
    )


def test_an_sla_file_says_what_was_promised(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    ring = written(tmp_path / "ring", texts(Llm()))
    status, out, _ = doctor(ring, "--sla", tmp_path / "sla.yaml")
    assert status == 1 and "interactive: TTFT P95 by its histogram, promised 50 ms: 2" in " ".join(out.split())


def sample(number: int, sent: int, end: int) -> Sample:
    at = number * 100 * MS
    ok = {"outcome": "ok", "error": "", "finish_reason": "length"}
    tokens = {"asked": 4, "prompt_tokens": 5, "cached_tokens": 0, "output_tokens": 4}
    return Sample(
        f"r{number}", "chat", "interactive", at, at + sent, at + end, at + end, ((at + end, 4),), **ok, **tokens  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lag", "end", "told"),
    [
        (2 * MS, 700 * MS, None),  # inside it takes 0.6 s at the median
        (2 * MS, 2000 * MS, "chat: time is lost between client and model"),
        (800 * MS, 2000 * MS, "client: requests queue in the load generator"),
    ],
)
def test_what_the_client_saw_tells_queues_before_the_server(
    doctor: Doctor, tmp_path: Path, lag: int, end: int, told: str | None
) -> None:
    run = Recording(
        120 * 10**9, 0, 1.0, Client(lag, 0.0, 0.1, 10**18), {("chat", "interactive"): Sent(True, None)},
        [sample(number, lag, end) for number in range(200)],
    )  # fmt: skip
    (tmp_path / "samples").write_text(recording.dumps(run))
    status, out, _ = doctor(written(tmp_path / "ring", texts(Llm())), "--samples", tmp_path / "samples")
    assert (status, out.splitlines()[0].startswith(told or "Healthy")) == (1 if told else 0, True)


def test_the_client_is_compared_with_what_the_server_saw_in_its_own_time(doctor: Doctor, tmp_path: Path) -> None:
    """Inside it takes 4 s at the median for a minute, then 0.6 s; the client's 4 s are of one, or of neither."""
    slow = np.arange(SECONDS) < SECONDS // 2
    tier = Tier(rate=4.0, e2e=(np.where(slow, 4.0, 0.6), np.where(slow, 9.0, 2.5)))
    series = texts(Llm(tiers={"interactive": tier}))
    ring = written(tmp_path / "ring", series)

    def told(began: int) -> tuple[int, str, str]:
        sent = {("chat", "interactive"): Sent(True, None)}
        client = Client(0.0, 0.0, 0.1, 10**18 + began * 10**9)
        run = Recording(55 * 10**9, 0, 1.0, client, sent, [sample(number, 0, 4000 * MS) for number in range(200)])
        (tmp_path / "samples").write_text(recording.dumps(run))
        return doctor(ring, "--samples", tmp_path / "samples")

    assert told(0)[0] == 0
    status, out, _ = told(62)
    assert status == 1 and "time is lost between client and model" in out and "inside of the model: 6" in out
    for began in (-3600, 3600):
        status, out, err = told(began)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "holds no sample of the time in which the client loaded (--samples)" in err


def test_bad_input_is_told_in_a_line(doctor: Doctor, tmp_path: Path) -> None:
    empty, ring = tmp_path / "empty", written(tmp_path / "ring", texts(Llm()))
    empty.mkdir()
    (tmp_path / "text").write_text("no samples")
    for words, wrong in [
        ((tmp_path / "nowhere",), "nowhere: No such file or directory; give a folder that gapless observe has written"),
        ((empty,), "empty: holds no samples"),
        ((ring, "--sla", tmp_path / "nothing.yaml"), "nothing.yaml: No such file or directory; give an SLA file"),
        ((ring, "--samples", tmp_path / "text"), "text: line 1: "),
        ((ring, "--json", tmp_path), "--json: "),
        ((ring, "--last", "soon"), "'soon' is not a duration"),
    ]:
        status, out, err = doctor(*words)
        assert (status, out) == (2, "") and wrong in " ".join(err.split()), err
        assert len(err.splitlines()) == 1 or "--last" in words
    (empty / "samples-00000001.jsonl").write_text('{"gapless_ring":1}\n')
    status, out, err = doctor(empty)
    assert (status, out) == (2, "") and "holds 0 samples over 0 s; at least 10 over 10 s are needed" in err
