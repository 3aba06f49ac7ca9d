"""A trace of the real Triton while it serves: its steps are those the metrics page counts, its gaps those we made."""

from __future__ import annotations

import time
from pathlib import Path

from repositories import scripted_repository
from serving import Serving, serve, wait_for
from trace_check import check

from decode.step_file import read
from gapless.tracing import write_trace

STEP = 0.01  # seconds that the scripted model takes
PAUSE = 0.4  # seconds without a request
NAMES = ("early", "late-1", "late-2")


def test_a_trace_of_a_running_server_has_its_steps_requests_and_pauses(tmp_path: Path, smollm2_dir: Path) -> None:
    log, out = tmp_path / "steps", tmp_path / "trace.json"
    repository = scripted_repository(tmp_path / "models", smollm2_dir, STEP, steps_to=str(log))
    with serve(repository, tmp_path, model="scripted") as serving:
        first = serving.stream("early", text_input="Who is there?", sampling_parameters='{"max_tokens": 20}')
        first.read()
        first.close()
        asleep = time.time_ns()
        time.sleep(PAUSE)
        awake = time.time_ns()
        streams = [
            serving.stream(name, "batch", text_input="word " * 150, sampling_parameters='{"max_tokens": 12}')
            for name in NAMES[1:]
        ]
        for stream in streams:
            stream.read()
            stream.close()
        steps = wait_for(lambda: steps_of(log, serving))
        seconds = serving.metric("gapless_step_seconds_sum")
        lines = write_trace(log, out, None, None)  # the server goes on
    found = check(out)
    shown = [one for one in found.threads["steps"] if one.name == "step"]
    assert len(shown) == steps and lines[0].startswith(f"{steps} steps of ")
    for name in NAMES:  # the service adds a number: an id may be used again
        [one] = [one for one in found.items if one.name.startswith(f"{name}#")]
        assert one.args["end"] == "length" and one.args["output_tokens"] == (20 if name == "early" else 12)
        assert one.args["tier"] == ("interactive" if name == "early" else "batch")
    executing = sum(part.end - part.begin for one in shown for part in one.inside if part.name == "execute")
    assert steps * STEP <= executing / 1e9 <= sum(one.end - one.begin for one in shown) / 1e9 <= seconds
    [gap] = [
        gap
        for gap in found.threads["gaps"]
        if gap.name == "no request" and gap.begin + found.began <= asleep and gap.end + found.began >= awake
    ]
    assert gap.end - gap.begin >= PAUSE * 1e9
    whole = max(one.end for one in found.threads["steps"])
    assert executing + sum(one.end - one.begin for one in found.threads["gaps"]) == whole
    assert f"{executing / whole:.1%} executing" in lines[0]


def steps_of(log: Path, serving: Serving) -> int:
    """How many there were, once all requests have ended and the page says the same twice; 0 before."""
    entries = list(read(log)[1])
    ended = {gone.id.partition("#")[0] for entry in entries for gone in entry.gone}
    steps = sum(entry.step is not None for entry in entries)
    pages = (serving.metric("gapless_steps_total"), serving.metric("gapless_step_seconds_count"))
    return steps if ended >= set(NAMES) and pages == (steps, steps) else 0
