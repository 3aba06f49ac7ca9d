"""A small run of a load test, made by hand, and what was seen of its server, for tests of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from config_gen.sla.spec import load
from gapless.load_report import LoadReport
from loadtest.recording import Recording, Sent
from loadtest.report import ModelReport, Report
from loadtest.run import Client
from loadtest.samples import Outcome, Sample
from loadtest.verdict import judge, summarize
from observe import window
from observe.series import named
from observe.window import Window

SECOND, MS = 10**9, 10**6
LOADED = 8  # s
BEGAN = 1_800_000_000 * SECOND
HOSTILE = "<script>alert('it ran')</script> & \"<img src=http://evil.example/x>\""
SLA = f"""
# {HOSTILE} </pre></body>
gapless: 1
tiers: {{interactive: {{}}, api: {{}}, batch: {{}}}}
models:
  chat:
    kind: llm
    source: wheel:any
    targets: {{interactive: {{ttft: 150ms, itl: 45ms, at: p90}}, api: {{e2e: 1s, at: p50}}, batch: {{e2e: 1s}}}}
    traffic:
      interactive: {{rate: 5/s, prompt: {{median: 5, p95: 9}}, output: {{median: 5, p95: 9}}}}
      api: {{rate: 2/s, prompt: {{median: 5, p95: 9}}, output: {{median: 5, p95: 9}}}}
      batch: {{rate: 0.1/s, prompt: {{median: 5, p95: 9}}, output: {{median: 5, p95: 9}}}}
  embed:
    kind: onnx
    source: wheel:any
    targets: {{interactive: {{e2e: 1s, at: p90}}}}
    traffic: {{interactive: {{rate: 3/s}}}}
"""
TIERS = {"chat": ("interactive", "api", "batch"), "embed": ("interactive",)}


def sample(model: str, tier: str, at: float, ttft: float, gaps: Sequence[float], outcome: Outcome = "ok") -> Sample:
    """Sent at `at` s. Tokens after `ttft` s and each of `gaps`; without gaps an answer in one piece; or an error."""
    sent, times = int(at * SECOND), [at + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    messages = tuple((int(time * SECOND), 1) for time in times) if gaps and outcome == "ok" else ()
    first, end = (messages[0][0] if messages else None), int(times[-1] * SECOND)
    error = "" if outcome == "ok" else f"queue of {tier}: {HOSTILE}"
    asked = len(gaps) + 1 if gaps else 0
    rest = (outcome, error, "length" if messages else "", asked, 7 * bool(asked), 2 * bool(asked), len(messages))
    return Sample(f"{model}-{tier}-{at:g}", model, tier, sent, sent, first, end, messages, *rest)  # type: ignore[arg-type]


def samples() -> list[Sample]:
    """40 interactive requests, 15 of api (two refused, one failed), none of batch; 24 texts."""
    found = [sample("chat", "interactive", n / 5, 0.1 + n / 1000, [0.02 + n / 2000] * 4) for n in range(40)]
    lost: dict[int, Outcome] = {4: "rejected", 9: "failed", 10: "rejected"}
    found += [sample("chat", "api", n / 2, 0.2, [0.1, 0.05 * (n + 1)], lost.get(n, "ok")) for n in range(15)]
    return [*found, *(sample("embed", "interactive", n / 3, 0.01 + n / 500, []) for n in range(24))]


def seen() -> Window:
    """A sample every 250 ms from 1 s before the load until 2 s after it."""
    rows = []
    for at in range(-4, 4 * (LOADED + 2) + 1):
        busy, done = float(0 <= at < 4 * LOADED), float(max(0, min(at, 4 * LOADED)))
        values = {
            named("gapless_running", model="chat"): 3 * busy,
            named("gapless_slots", model="chat"): 8.0,
            named("gapless_waiting", model="chat", tier="interactive"): 2 * busy,
            named("gapless_waiting", model="chat", tier="api"): busy,
            named("gapless_pages_used", model="chat"): 40 * busy,
            named("gapless_pages_cached", model="chat"): done,
            named("gapless_pages_total", model="chat"): 100.0,
            named("gapless_step_seconds_sum", model="chat"): 0.1 * done,
            named("gapless_step_seconds_count", model="chat"): 5 * done,
            named("gapless_engine_info", model="chat", policy="tiers", device="cpu"): 1.0,
            named("host_cpu_percent", core="0"): 90 * busy,
            named("host_cpu_percent", core="1"): 40.0,
            named("host_process_cpu_seconds_total", process="server", pid="7"): 0.05 * done,
            named("host_process_rss_bytes", process="server", pid="7"): 3e8,
        }
        rows.append((BEGAN + at * SECOND // 4, values))
    return window.of_samples(rows)


def run(folder: Path, taken: Sequence[Sample]) -> tuple[LoadReport, Report, Recording]:
    """A report that is to be written into `folder`/report, of a run that gave these samples."""
    (folder / "sla.yaml").write_text(SLA)
    spec = load(folder / "sla.yaml")
    client = Client(send_lag=1.0 * MS, loop_lag=2.0 * MS, cpu=0.1, began=BEGAN)
    models = []
    for name, tiers in TIERS.items():
        own, targets = [one for one in taken if one.model == name], spec.models[name].targets
        classes = summarize(own, tiers, LOADED * SECOND, name == "chat", targets)
        models.append(ModelReport(name, classes, judge(classes, targets, tiers, client)))
    found = Report(LOADED * SECOND, 3, 1.0, client, models, [f"A note: {HOSTILE}"])
    sent = {
        (name, tier): Sent(name == "chat", spec.models[name].targets.get(tier))
        for name, tiers in TIERS.items()
        for tier in tiers
    }
    page = LoadReport(folder / "report", None, "127.0.0.1:8001", folder / "sla.yaml", spec)
    return page, found, Recording(LOADED * SECOND, 3, 1.0, client, sent, taken)


def written(folder: Path, taken: Sequence[Sample], server: Callable[[], Window] | None = seen) -> tuple[Path, Report]:
    """The page of that run, and the run's report."""
    page, found, recording = run(folder, taken)
    if server is not None:
        page.seen = server()
    page.finish(found, recording)
    return folder / "report" / "report.html", found
