"""SLA files of every kind that a plan may be asked for, with facts of their models."""

from __future__ import annotations

from itertools import product

from planning import engine, llm, pictures

from config_gen.facts import Facts
from config_gen.sla.spec import Spec, parse

TIERS = (
    "{interactive: {weight: 8}}",
    "{interactive: {weight: 8, queue_timeout: 2s, max_queue: 64}, batch: {weight: 1, idle_below: 40%}}",
    "{interactive: {weight: 8, queue_timeout: 500ms}, api: {weight: 3, max_queue: 100}, batch: {weight: 1}}",
)
EMBED = """  {name}:
    kind: onnx
    source: wheel:some{more}
    targets: {{interactive: {{e2e: {e2e}}}}}
    traffic: {{interactive: {{rate: {rate}/s, length: {{median: 40, p95: 128}}}}{batch}}}
"""
CLASSIFY = """  {name}:
    kind: onnx
    source: wheel:some{more}
    targets: {{interactive: {{e2e: 500ms}}}}
    traffic: {{interactive: {{rate: {rate}/s}}}}
"""
CHAT = """  {name}:
    kind: llm
    source: wheel:some
    max_model_len: 512{more}
    targets: {{interactive: {{ttft: 2s, itl: 250ms, at: p90}}}}
    traffic: {{interactive: {{rate: {rate}/s, prompt: {{median: 60, p95: 200}}, output: {{median: 8, p95: 16}}}}}}
"""
PINS = ("", "\n    instances: 2", "\n    queue_delay: 3ms", "\n    response_cache: {repeats: 30%, size: 8MiB}")
LLM_PINS = ("", "\n    max_num_seqs: 6", "\n    kv_cache_memory: 256MiB")


def cpu_specs() -> list[tuple[Spec, dict[str, Facts]]]:
    """Forty and more files without cards: tiers, rates, targets, pinned settings; an LLM beside some of them."""
    found = []
    for at, (tiers, (rate, e2e), more) in enumerate(
        product(TIERS, [(10, "200ms"), (250, "60ms"), (400, "500ms")], PINS)
    ):
        name = f"m{at}"
        batch = f", batch: {{rate: {rate / 5}/s, length: {{median: 90, p95: 256}}}}" if "batch" in tiers else ""
        models = EMBED.format(name=name, more=more, e2e=e2e, rate=rate, batch=batch)
        facts: dict[str, Facts] = {name: engine()}
        if at % 6 == 0 and rate < 100:
            models += CHAT.format(name=f"c{at}", more=LLM_PINS[at // 6 % 3], rate=1)
            facts[f"c{at}"] = llm()
        found.append((parse(f"gapless: 1\ntiers: {tiers}\nmodels:\n{models}"), facts))
    for at, more in enumerate(LLM_PINS):
        text = CHAT.format(name=f"l{at}", more=more, rate=0.5)
        found.append((parse(f"gapless: 1\ntiers: {TIERS[at]}\nmodels:\n{text}"), {f"l{at}": llm()}))
    for at, (tiers, rate) in enumerate(product(TIERS, (5, 40))):
        text = CLASSIFY.format(name=f"p{at}", more=PINS[at % 3], rate=rate)
        found.append((parse(f"gapless: 1\ntiers: {tiers}\nmodels:\n{text}"), {f"p{at}": pictures()}))
    return found


def gpu_specs() -> list[tuple[Spec, dict[str, Facts]]]:
    """Files with cards, of every way to share them that one server can do."""
    found = []
    for at, sharing in enumerate(("auto", "mps", "time-slice", "in-process")):
        models = EMBED.format(name=f"e{at}", more="", e2e="100ms", rate=50, batch="")
        models += EMBED.format(name=f"f{at}", more="\n    instances: 3", e2e="100ms", rate=20, batch="")
        models += CHAT.format(name=f"c{at}", more="", rate=2)
        models += CLASSIFY.format(name=f"p{at}", more="", rate=20)
        hardware = f"{{gpus: [{{type: a100-80gb, count: 4}}], sharing: {sharing}}}"
        facts: dict[str, Facts] = {
            f"e{at}": engine(fixed=0.4, per_token=0.001, gpu=True),
            f"f{at}": engine(fixed=0.4, per_token=0.001, gpu=True),
            f"c{at}": llm(2.0, 0.02, gpu=True),
            f"p{at}": pictures(fixed=0.4, per_token=0.001, gpu=True),
        }
        found.append((parse(f"gapless: 1\nhardware: {hardware}\ntiers: {TIERS[1]}\nmodels:\n{models}"), facts))
    return found
