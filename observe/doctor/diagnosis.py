"""All rules over one window: findings in the order in which to mend them, causes with the symptoms that they explain.

Must not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from config_gen.sla.spec import Spec
from observe import memory_report
from observe.doctor import rules_batching, rules_gpu, rules_hardware, rules_memory, rules_queues, rules_tiers
from observe.doctor.checklist import checklist
from observe.doctor.facts import ClientFacts, Facts
from observe.doctor.finding import SEVERITIES, Check, Finding
from observe.doctor.gather import gather
from observe.window import Window

OF_LLM = (
    rules_batching.one_at_a_time,
    rules_batching.slots_tight,
    rules_batching.latency_blind,
    rules_batching.falls_beyond,
    rules_memory.pages_short,
    rules_memory.preemption_storm,
    rules_memory.prefix_useless,
    rules_memory.too_wide,
    rules_tiers.tiers_missing,
    rules_tiers.starving,
    rules_tiers.hangs,
    rules_tiers.urgent_late,
    rules_tiers.long_prompts,
    rules_queues.in_the_scheduler,
    rules_queues.too_much,
)
OF_UNARY = (
    rules_batching.one_a_batch,
    rules_batching.latency_blind,
    rules_batching.falls_beyond,
    rules_queues.in_triton,
    rules_queues.moving_data,
    rules_queues.too_much_unary,
)
OF_CARD = (
    rules_hardware.fault,
    rules_hardware.throttled,
    rules_gpu.full_and_idle,
    rules_gpu.not_on_tensor_cores,
    rules_hardware.near_the_link,
    rules_hardware.slow_link,
    rules_gpu.more_replicas,
    rules_gpu.memory_first,
)
QUEUES = "queue-scheduler queue-pages queue-triton too-much over-target"
# A cause with what it may explain, in the order in which they are looked for: the first one that fits takes a symptom.
# Findings of other models are never explained; those of cards are, since all models share them.
EXPLAINS = {
    "fault": f"hangs throttled {QUEUES}",
    "hangs": f"starving memory-first full-idle {QUEUES}",
    "queue-client": "queue-network",
    "one-at-a-time": f"{QUEUES} full-idle memory-first tiers-missing starving not-on-tensor-cores slots-tight",
    "throttled": f"{QUEUES} falls-beyond replicas-help",
    "pages-short": f"preemption-storm {QUEUES} memory-first full-idle slots-tight",
    "preemption-storm": QUEUES,
    "tiers-missing": f"{QUEUES} starving slots-tight",
    "long-prompts": "over-target queue-scheduler",
    "slots-tight": f"{QUEUES} full-idle",
    "pcie": f"not-on-tensor-cores {QUEUES} slow-link",
    "latency-blind": "over-target falls-beyond",
    "too-much": "queue-scheduler queue-triton over-target replicas-help",
    "replicas-help": QUEUES,
}
RANK = [*EXPLAINS, "starving", "leak", "over-target", "queue-pages", "queue-scheduler", "queue-triton", "memory-first"]


@dataclass(frozen=True)
class Diagnosis:
    """`findings`: what is to be mended first comes first."""

    facts: Facts
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Nothing but hints."""
        return all(finding.severity == "hint" for finding in self.findings)


def diagnose(window: Window, spec: Spec | None = None, client: ClientFacts | None = None) -> Diagnosis:
    """Raises DoctorError when the window is too short to say anything, or not of the client's time."""
    facts = gather(window, spec, client)
    told = list(memory_report.told(window)) if facts.seconds >= memory_report.WATCHED else None
    mine = [(it.name, it.curve) for it in told or () if not it.name.startswith(("KV pages", "this machine"))]
    found = [*judged(facts), *rules_memory.leaks(iter(mine))]
    calm = (
        None if told is None else [f"{it.name}: {it.curve.teeth.count} teeth, {it.curve.growth.ruling}." for it in told]
    )
    return Diagnosis(facts, tuple(ranked(found)), tuple(checklist(facts, found, calm)))


def judged(facts: Facts) -> Iterator[Finding]:
    """What every rule says of everything that it is about."""
    found = [rule(facts, llm) for llm in facts.llms for rule in OF_LLM]
    found += [rule(facts, unary) for unary in facts.unary for rule in OF_UNARY]
    found += [rule(facts, card) for card in facts.cards for rule in OF_CARD]
    found.append(rules_queues.in_the_client(facts))
    if facts.client is not None:
        found += [rules_queues.before_the_server(facts.client, *key, inside) for key, inside in facts.inside.items()]
    yield from (finding for finding in found if finding is not None)


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Causes above problems above hints; what another one explains stands beneath it."""
    ordered = sorted(findings, key=_place)
    roots: list[Finding] = []
    under: dict[int, list[Finding]] = {}
    for finding in ordered:
        cause = next((at for at, root in enumerate(roots) if _explains(root, finding)), None)
        if cause is None:
            roots.append(finding)
        else:
            under.setdefault(cause, []).append(finding)
    return [replace(root, symptoms=tuple(under.get(at, ()))) for at, root in enumerate(roots)]


def _place(finding: Finding) -> tuple[int, int, float, str]:
    rank = RANK.index(finding.name) if finding.name in RANK else len(RANK)
    return SEVERITIES.index(finding.severity), rank, -finding.confidence.share, finding.about


def _explains(cause: Finding, symptom: Finding) -> bool:
    near = symptom.about == cause.about or any(about.startswith("GPU ") for about in (symptom.about, cause.about))
    return near and symptom.name in EXPLAINS.get(cause.name, "").split()


def as_json(folder: str, diagnosis: Diagnosis) -> dict[str, object]:
    facts = diagnosis.facts
    return {
        "samples": folder,
        "seconds": facts.seconds,
        "count": facts.samples,
        "healthy": diagnosis.healthy,
        "notes": list(facts.notes),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "checklist": [asdict(check) for check in diagnosis.checks],
    }
