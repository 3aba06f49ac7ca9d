"""Each rule on a window that has its disease, and on windows that look much like it and are healthy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from doctor_windows import SECONDS, Card, Host, Llm, Part, Tier, Unary, level, window

from config_gen.sla.spec import Spec, parse
from observe.doctor.diagnosis import Diagnosis, diagnose
from observe.doctor.finding import Finding

AT = np.arange(SECONDS) / (SECONDS - 1)  # from 0 to 1
WAITS = {"queue": (3.0, 8.0), "ttft": (3.1, 8.2), "e2e": (4.0, 10.0)}
LATE = {"interactive": Tier(14.0, 1.0, 30.0, **WAITS), "batch": Tier(5.0, 0.4, 30.0, **WAITS)}
SERIAL = Llm(tiers=LATE, policy="fcfs", mode="serial", slots=1, running=1.0, tokens=0.95, steps=50.0, pages=0.05)
FULL = Llm(tiers=LATE, running=32.0, pages=0.5, tokens=24.0)
MIXED = Llm(
    tiers={
        "interactive": Tier(3.0, 4.0, 70.0, (0.7, 2.0), (0.9, 2.4), (0.05, 0.1), (2.0, 5.0)),
        "batch": Tier(20.0, 1.5, 90.0, (0.9, 2.5), (1.2, 3.0), (0.05, 0.1), (9.0, 20.0)),
    },
    policy="fcfs",
    running=30.0,
    slots=64,
)
SLA = parse("""
gapless: 1
tiers: {interactive: {weight: 8}, batch: {weight: 1, idle_below: 40%}}
models:
  chat:
    kind: llm
    source: wheel:any
    targets: {interactive: {ttft: 500ms, itl: 75ms, at: p95}}
    traffic:
      interactive: {rate: 2/s, prompt: {median: 40, p95: 160}, output: {median: 16, p95: 48}, shared_prefix: 100}
""")


def everything(diagnosis: Diagnosis) -> Iterator[Finding]:
    for finding in diagnosis.findings:
        yield finding
        yield from finding.symptoms


def tier(llm: Llm, name: str, **changes: object) -> Llm:
    return replace(llm, tiers={**llm.tiers, name: replace(llm.tiers[name], **changes)})  # type: ignore[arg-type]


STARVING = tier(Llm(), "batch", waiting=12.0, service=0.0, rate=0.0)
SHORT = tier(Llm(pages=0.97, preemptions=1.0), "interactive", waiting=5.0, queue=(2.0, 5.0), e2e=(3.0, 8.0))
LONG = tier(Llm(prompts=(60.0, 3000.0), step=(0.02, 0.4)), "interactive", itl=(0.02, 0.35))
GROWING = tier(Llm(running=32.0), "interactive", waiting=60 * AT)
PHASES = np.repeat([0.0, 1.0, 0.2, 0.9, 0.4, 0.7, 0.1, 1.0, 0.3, 0.8, 0.0, 0.6], SECONDS // 12)  # load by part
BLIND = Unary(batch=8 + 24 * PHASES, rate=800 + 40 * PHASES, p99=0.022 + 0.07 * PHASES, queue=0.002, computing=0.02)
BLIND_CARD = Card(utilization=60 + 25 * PHASES, sm=0.6 + 0.25 * PHASES)
CONTENDED = Unary(pending=3.0, rate=np.where(PHASES > 0.65, 700.0, 800.0))
CONTENDED_CARD = Card(utilization=np.where(PHASES > 0.65, 96.0, 85.0), sm=np.where(PHASES > 0.65, 0.96, 0.85))
QUEUED = Unary(batch=1.0, pending=12 * AT + 3, queue=0.15, computing=0.02)

IDLE, HOT = tier(FULL, "interactive", waiting=0.0), Card(sm=0.93, utilization=99.0, memory=0.5)

SICK: dict[str, tuple[tuple[Part, ...], str, str]] = {
    "one at a time": ((SERIAL,), "one-at-a-time", "max_num_seqs"),
    "one at a time, and nothing tells the mode": ((replace(SERIAL, info=False),), "one-at-a-time", "max_num_seqs"),
    "one at a time in spite of many slots": ((replace(SERIAL, slots=32, mode="continuous"),), "one-at-a-time", "slots"),
    "one at a time on a card": (
        (SERIAL, Card(utilization=23.0, sm=0.23, tensor=0.18, memory=0.64)),
        "one-at-a-time",
        "max_num_seqs",
    ),
    "one a batch": ((QUEUED,), "one-at-a-time", "max_batch_size"),
    "slots tight": ((FULL, Host(cpu=60.0)), "slots-tight", "max_num_seqs"),
    "latency-blind batching": ((BLIND, BLIND_CARD), "latency-blind", "max_batch_size"),
    "throughput falls": ((CONTENDED, CONTENDED_CARD), "falls-beyond", "max_queue"),
    "short of pages": ((SHORT,), "pages-short", "kv_cache_memory"),
    "preemption storm": ((Llm(preemptions=2.0, pages=0.84),), "preemption-storm", "kv_cache_memory"),
    "tiers missing": ((MIXED,), "tiers-missing", "idle_below"),
    "tiers missing, by numbers alone": ((replace(MIXED, info=False),), "tiers-missing", "weighted"),
    "one tier starves": ((STARVING,), "starving", "weight"),
    "long prompts": ((LONG,), "long-prompts", "max_long"),
    "scheduler queues": ((tier(Llm(running=20.0), "interactive", waiting=4.0, **WAITS),), "queue-scheduler", "plan"),
    "Triton queues": ((Unary(batch=8.0, pending=40.0, queue=0.2),), "queue-triton", "instances"),
    "moving data": ((Unary(moving=0.03),), "moving-data", "pinned"),
    "more than is served": ((GROWING,), "too-much", "max_queue"),
    "more than is served, of another": ((Unary(pending=80 * AT),), "too-much", "plan"),
    "full but idle": ((IDLE, Card(sm=0.2, utilization=20.0, memory=0.8)), "full-idle", "max_num_seqs"),
    "not on tensor cores": ((Card(utilization=95.0, tensor=0.2, sm=0.6),), "not-on-tensor-cores", "Nsight"),
    "copies": ((Card(utilization=95.0, tensor=0.2, pcie=14e9),), "not-on-tensor-cores", "pinned"),
    "host-bound": ((Card(utilization=95.0, tensor=0.2, sm=0.3), Host(cores=1.0)), "not-on-tensor-cores", "Python"),
    "PCIe at its limit": ((Card(pcie=28e9),), "pcie", "types"),
    "PCIe at its limit, of a link that nobody tells": ((Card(pcie=45e9, link=None),), "pcie", "types"),
    "power": ((Card(utilization=98.0, held={"sw_power_cap": 1.0}, clock=1200.0),), "throttled", "nvidia-smi -pl"),
    "heat": ((Card(utilization=98.0, held={"hw_thermal": 1.0}, clock=900.0),), "throttled", "airflow"),
    "a fault": ((Card(xid=np.where(AT > 0.5, 79.0, 0.0)),), "fault", "XID 79"),
    "mend memory first": ((FULL, Card(sm=0.3, utilization=30.0, memory=0.96)), "memory-first", "replicas"),
    "more replicas": ((tier(Llm(), "interactive", waiting=4.0), HOT), "replicas-help", "another card"),
}  # fmt: skip


@pytest.mark.parametrize("case", SICK)
def test_a_disease_is_named_with_evidence_and_what_to_do(case: str) -> None:
    parts, name, word = SICK[case]
    found = [finding for finding in everything(diagnose(window(*parts))) if finding.name == name]
    assert len(found) == 1, [it.name for it in everything(diagnose(window(*parts)))]
    assert word in found[0].remedy
    assert found[0].severity != "hint" and 0.3 < found[0].confidence.share < 1
    assert len(found[0].evidence) >= 1 and all(it.source for it in found[0].evidence)


OLD = tier(Llm(), "interactive", waiting=np.where(AT < 0.05, 9.0, 0.0))  # a queue that was there when the server began
GATED = Llm(
    tiers={
        "interactive": Tier(0.0),
        "batch": Tier(20.0, 0.1, 4.0, (30.0, 90.0), (31.0, 91.0), (0.02, 0.05), (40.0, 95.0)),
    },
    running=np.where(AT < 0.9, 1.0, 3.0),
)  # fmt: skip
HEALTHY: dict[str, tuple[Part, ...]] = {
    "busy": (Llm(), Unary(), Card(), Host()),
    "idle": (
        Llm(running=0.0, steps=0.0, pages=0.0, tiers={name: Tier(0.0, 0.0, 0.0) for name in ("interactive", "batch")}),
        Unary(rate=0.0),
        Card(utilization=0.0, sm=0.0, tensor=0.0, dram=0.0, memory=0.95, held={"gpu_idle": 1.0}, clock=300.0),
        Host(cpu=2.0, cores=0.0),
    ),
    "nothing but Triton": (Llm(), Unary()),
    "nothing but the driver": (Card(tensor=None, sm=None, dram=None),),
    "nothing but the machine": (Host(),),
    "MIG: no utilization, no profiling": (Llm(), Card(utilization=None, tensor=None, sm=None, dram=None)),
    "one slot, and nobody waits": (replace(SERIAL, tiers={"interactive": Tier(0.0)}),),
    "one runs, and who waits waits for gaps": (GATED,),
    "waited at first": (OLD,),
    "batches of one without a queue": (Unary(batch=1.0, pending=0.2, queue=0.001),),
    "batches of one, a short queue": (Unary(batch=1.0, pending=0.6, queue=0.009, computing=0.01),),
    "large batches with a long queue delay": (Unary(batch=8.0, pending=3.0, queue=0.01, computing=0.02),),
    "slots full, nobody waits": (Llm(running=32.0),),
    "pages full, nobody waits": (Llm(pages=0.95),),
    "pages full of what the first burst left": (Llm(pages=np.where(AT < 0.1, 0.95, 0.4)),),
    "a preemption now and then": (Llm(preemptions=0.05),),
    "order of arrival, and room for all": (Llm(policy="fcfs"),),
    "order of arrival, one tier": (
        replace(MIXED, tiers={"interactive": Tier(0.0, 4.0, 70.0, (0.02, 0.1))}),
    ),
    "order of arrival, and hardly any background": (tier(Llm(policy="fcfs", running=20.0), "batch", service=2.0),),
    "weighted, and the background waits": (
        tier(Llm(), "batch", waiting=20.0, queue=(20.0, 60.0), ttft=(21.0, 61.0), e2e=(30.0, 70.0)),
    ),
    "served between, if seldom": (
        tier(STARVING, "batch", service=np.where(np.arange(SECONDS) % 15 == 0, 100.0, 0.0)),
    ),
    "long prompts that stall nobody": (Llm(prompts=(60.0, 3000.0)),),
    "stalls without long prompts": (Llm(step=(0.02, 0.4)),),
    "more load, more latency, more throughput": (
        Unary(batch=2 + 6 * PHASES, rate=200 + 900 * PHASES, p99=0.02 + 0.03 * PHASES),
        Card(utilization=20 + 60 * PHASES, sm=0.2 + 0.6 * PHASES),
    ),
    "throughput grows beyond 90 %": (replace(CONTENDED, rate=np.where(PHASES > 0.65, 850.0, 800.0)), CONTENDED_CARD),
    "a warm-up off tensor cores": (Card(utilization=95.0, tensor=np.where(AT < 0.3, 0.05, 0.65)),),
    "decoding, bound by bandwidth": (Card(utilization=99.0, tensor=0.15, dram=0.85),),
    "near the power limit at full clocks": (Card(utilization=98.0, held={"sw_power_cap": 0.6}, clock=1940.0),),
    "held down while idle": (Card(utilization=1.0, held={"gpu_idle": 1.0, "sw_power_cap": 1.0}, clock=300.0),),
    "a link that sleeps while idle": (Card(utilization=0.0, link=(1, 16, 4, 16), pcie=0.0),),
    "much memory, some compute, nobody waits": (Llm(), Card(memory=0.95, sm=0.3, utilization=35.0)),
    "a burst": (tier(Llm(), "interactive", waiting=np.where((AT > 0.5) & (AT < 0.54), 20.0, 0.0)),),
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTHY)
def test_what_only_looks_alike_is_no_finding(case: str) -> None:
    assert [it for it in everything(diagnose(window(*HEALTHY[case]))) if it.severity != "hint"] == []


HINTS: dict[str, tuple[tuple[Part, ...], str]] = {
    "a prefix cache without prefixes": ((Llm(hits=0.0),), "prefix-useless"),
    "allows far more than is asked": ((Llm(max_model_len=32768),), "too-wide"),
    "a slot below what the card can": ((Card(utilization=90.0, link=(4, 8, 5, 16)),), "slow-link"),
    "near its limit, and nobody waits yet": ((Llm(), HOT), "replicas-help"),
    "an old fault": ((Card(xid=31.0),), "fault"),
}


@pytest.mark.parametrize("case", HINTS)
def test_what_does_not_hurt_today_is_a_hint(case: str) -> None:
    parts, name = HINTS[case]
    diagnosis = diagnose(window(*parts))
    assert [(it.name, it.severity) for it in everything(diagnosis)] == [(name, "hint")] and diagnosis.healthy


@pytest.mark.parametrize(
    ("llm", "name"),
    [
        (replace(Llm(), prefix_cache="off", hits=0.0), "prefix-useless"),
        (replace(Llm(hits=0.0), prompts=(10.0, 30.0), tiers={"interactive": Tier(rate=0.2)}), "prefix-useless"),
        (Llm(max_model_len=4096), "too-wide"),
        (replace(Llm(prompts=(900.0, 6000.0)), max_model_len=32768), "too-wide"),
    ],
)
def test_near_misses_of_hints(llm: Llm, name: str) -> None:
    assert name not in {it.name for it in everything(diagnose(window(llm)))}


def test_a_cause_carries_the_symptoms_that_it_explains() -> None:
    card = Card(utilization=23.0, sm=0.23, tensor=0.18, memory=0.64)
    diagnosis = diagnose(window(SERIAL, card, Host()))
    assert [(it.about, it.title) for it in diagnosis.findings] == [("chat", "one request at a time")]
    told = {(it.about, it.title) for it in diagnosis.findings[0].symptoms}
    assert {("GPU 0", "full but idle"), ("chat", "requests queue in the scheduler"), ("chat", "tiers missing")} <= told


def test_evidence_has_the_numbers_of_the_window() -> None:
    [finding] = diagnose(window(MIXED)).findings
    assert finding.title == "tiers missing" and finding.severity == "cause"
    told = {it.source: it.value for it in finding.evidence}
    assert told["gapless_service_total"] == pytest.approx(90 / 160)
    assert told["gapless_queue_seconds"] == pytest.approx(0.7 * np.exp((np.log(2.0 / 0.7) / 2.3263) ** 2 / 2))
    [short] = diagnose(window(SHORT)).findings
    assert {it.told for it in short.evidence} >= {"preemptions: 119", "97% of the pages in use at the peak"}


def judged(llm: Llm, sla: Spec | None) -> list[tuple[str, str]]:
    return [(it.name, it.severity) for it in everything(diagnose(window(llm), sla))]


def test_an_sla_file_tells_targets_gates_and_shared_prefixes() -> None:
    late = tier(Llm(), "interactive", ttft=(0.4, 1.2))  # P95 is 0.87 s
    assert judged(late, None) == [] and judged(late, SLA) == [("over-target", "problem")]
    assert judged(Llm(), SLA) == []
    assert judged(STARVING, SLA) == []  # two minutes; it starts in gaps only, and ten are its due
    assert judged(STARVING, None) == [("starving", "problem")]
    assert judged(Llm(hits=0.0), SLA) == [("prefix-useless", "problem")]
    swapped = Llm(tiers={"batch": MIXED.tiers["batch"], "interactive": MIXED.tiers["interactive"]}, policy="fcfs")
    [finding] = diagnose(window(swapped), SLA).findings
    assert finding.remedy.startswith("let interactive go before batch")


def test_of_tiers_that_nobody_declared_the_assumption_is_told() -> None:
    notes = diagnose(window(Llm())).facts.notes
    assert any("guessed from their names" in note for note in notes)
    others = Llm(tiers={"gold": Tier(), "silver": Tier()})
    assert any("as they appear" in note for note in diagnose(window(others)).facts.notes)
    assert diagnose(window(Llm()), SLA).facts.notes == ()


def test_confidence_grows_with_length_effect_and_what_fits() -> None:
    from observe.doctor.finding import confidence

    base = confidence(30.0, 0.2).share
    assert confidence(60.0, 0.2).share > base and confidence(30.0, 0.9).share > base
    assert confidence(30.0, 0.2, ("it rains", True)).share > base > confidence(30.0, 0.2, ("it rains", False)).share
    assert confidence(30.0, 0.2, ("it rains", None)).share == base
    assert confidence(1e9, 1.0, ("it rains", True)).share < 1
    assert level(1.0).shape == (SECONDS,)
