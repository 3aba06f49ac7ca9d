"""Servers with a disease, and some that only look like it, for tests of the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from doctor_series import SECONDS
from doctor_windows import Card, Llm, Tier, Unary

from observe.doctor.diagnosis import Diagnosis
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


def tier(llm: Llm, name: str, **changes: object) -> Llm:
    return replace(llm, tiers={**llm.tiers, name: replace(llm.tiers[name], **changes)})  # type: ignore[arg-type]


HUNG = Llm(tiers={"interactive": Tier(7.0, 0.0, 0.0), "batch": Tier(2.0, 0.0, 0.0)}, running=1.0, steps=0.0)
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

HALF = tier(MIXED, "interactive", queue=(0.35, 1.0), ttft=(0.5, 1.3))  # as long as measured, and told to be fcfs
CALM = Llm(running=8 + 24 * PHASES, tokens=8 + 24 * PHASES, steps=240 / (8 + 23 * PHASES))
BLIND_LLM = tier(CALM, "interactive", itl=(0.03 + 0.06 * PHASES, 0.06 + 0.24 * PHASES))
IDLE, HOT = tier(FULL, "interactive", waiting=0.0), Card(sm=0.93, utilization=99.0, memory=0.5)

OLD = tier(Llm(), "interactive", waiting=np.where(AT < 0.05, 9.0, 0.0))  # a queue that was there when the server began
GATED = Llm(
    tiers={
        "interactive": Tier(0.0),
        "batch": Tier(20.0, 0.1, 4.0, (30.0, 90.0), (31.0, 91.0), (0.02, 0.05), (40.0, 95.0)),
    },
    running=np.where(AT < 0.9, 1.0, 3.0),
)  # fmt: skip


def everything(diagnosis: Diagnosis) -> Iterator[Finding]:
    for finding in diagnosis.findings:
        yield finding
        yield from finding.symptoms
