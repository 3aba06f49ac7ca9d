"""The two checklists that practitioners go through, item by item, each answered with its number or said to be unknown.

Must not know how facts are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from observe.amounts import show_bytes
from observe.doctor.facts import Facts
from observe.doctor.finding import Answer, Check, Finding
from observe.doctor.machine import CardFacts
from observe.doctor.rules_batching import TOGETHER
from observe.doctor.rules_gpu import TENSOR
from observe.doctor.rules_tiers import HUGE, TAIL

LAYERS = {
    "queue-client": "the load generator",
    "queue-network": "between client and model",
    "queue-triton": "Triton",
    "queue-scheduler": "the scheduler",
    "queue-pages": "KV pages",
}
NO_DCGM = "needs a DCGM exporter (gapless observe --dcgm)"
NO_DRIVER = "no GPU was sampled"


def checklist(facts: Facts, findings: Sequence[Finding], memory: Sequence[str] | None) -> list[Check]:
    """`findings` with those that others explain; `memory`: what curves are said to do, None where it is too early."""
    names = {finding.name for finding in findings}
    return [
        *_batching(facts, names),
        _memory(memory, names),
        _tensor(facts, names),
        _layers(facts, names),
        *_machine(facts),
        *_kernels(facts),
    ]


def _check(question: str, good: bool | None, told: str) -> Check:
    answer: Answer = "unknown" if good is None else "yes" if good else "no"
    return Check(question, answer, told)


def _batching(facts: Facts, names: set[str]) -> Iterator[Check]:
    merged = [(llm.model, llm.tokens_per_step, "tokens a step") for llm in facts.llms if llm.steps]
    merged += [(one.model, one.batch, "requests a batch") for one in facts.unary if one.executions]
    seen = [(model, size, unit) for model, size, unit in merged if size is not None]
    together = any(size > TOGETHER for _, size, _ in seen)
    good = False if "one-at-a-time" in names else True if together else None
    none = "nothing came together, so that nothing could be merged" if seen else "no model was sampled at work"
    told = "; ".join(f"{model}: {size:.3g} {unit}" for model, size, unit in seen)
    yield _check(
        "Are requests merged, not served one by one?",
        good,
        told if good is not None else f"{none}{': ' if told else ''}{told}",
    )
    lengths = [(llm.model, llm.prompts.p50, llm.prompts.p99 or llm.prompts.longest) for llm in facts.llms]
    tails = [(model, middle, last) for model, middle, last in lengths if middle and last]
    huge = any(last >= max(HUGE, TAIL * middle) for _, middle, last in tails)
    told = "; ".join(f"{model}: {middle:.0f} tokens at the median, {last:.0f} at P99" for model, middle, last in tails)
    yield _check(
        "Are prompts without huge ones in the tail?",
        not huge if tails else None,
        told or "too few requests of a language model ended",
    )
    slots = [(llm.model, llm.taken, llm.slots) for llm in facts.llms]
    told = "; ".join(
        f"{model}: all {limit:.0f} in use in {taken:.0%} of the samples"
        for model, taken, limit in slots
        if taken is not None and limit
    )
    tight = bool(names & {"slots-tight", "one-at-a-time"})
    yield _check("Does max_num_seqs leave room?", not tight if told else None, told or "no language model was sampled")


def _memory(memory: Sequence[str] | None, names: set[str]) -> Check:
    question = "Is the memory curve calm?"
    if memory is None:
        return _check(
            question,
            None,
            "half an hour of samples is needed to tell a leak from warming up (gapless observe --memory)",
        )
    return _check(question, "leak" not in names, " ".join(memory) or "no memory was sampled")


def _tensor(facts: Facts, names: set[str]) -> Check:
    question = "Are tensor cores at work?"
    sampled = [card for card in facts.cards if card.work.level is not None]
    shares = [(card.gpu, card.work.tensor) for card in sampled if card.work.tensor is not None]
    told = "; ".join(f"{gpu}: {share:.0%} while busy" for gpu, share in shares)
    if not shares:
        calm = "; ".join(f"{card.gpu}: {card.work.level:.0%}, and never fully busy" for card in sampled)
        return _check(question, None, calm or (NO_DCGM if facts.cards else NO_DRIVER))
    return _check(question, all(share >= TENSOR for _, share in shares), told)


def _layers(facts: Facts, names: set[str]) -> Check:
    question = "Does no layer hold a queue?"
    if not facts.llms and not facts.unary:
        return _check(question, None, "Triton was not sampled")
    where = [layer for name, layer in LAYERS.items() if name in names]
    waits = [f"{llm.model}: {llm.waiting:.3g} waiting" for llm in facts.llms if llm.waiting is not None]
    waits += [f"{one.model}: {one.pending:.3g} pending" for one in facts.unary if one.pending is not None]
    client = "" if facts.client else "; the client is unknown (--samples)"
    queued = max([llm.waiting or 0 for llm in facts.llms] + [one.pending or 0 for one in facts.unary]) >= 1
    return _check(question, not where and not queued, (", ".join(where) or "; ".join(waits) or "none is seen") + client)


def _machine(facts: Facts) -> Iterator[Check]:
    cards = facts.cards
    ran = any((card.utilization or 0) > 0 for card in cards)
    drivers = {f"driver {card.driver}, which takes CUDA up to {card.cuda}" for card in cards if card.driver}
    told = "; ".join(sorted(drivers))
    yield _check(
        "Do driver and CUDA match?",
        True if ran and drivers else None,
        f"{told}; kernels ran"
        if ran and drivers
        else told or (NO_DRIVER if not cards else "the driver was not sampled"),
    )
    modes = [_power_mode(card) for card in cards]
    seen = [it for it in modes if it is not None]
    yield _check(
        "Is the power mode that of a server?",
        all(good for good, _ in seen) if seen else None,
        "; ".join(t for _, t in seen) or NO_DRIVER,
    )
    weights = [
        (llm.model, llm.info["weights"], llm.info.get("device", "")) for llm in facts.llms if llm.info.get("weights")
    ]
    told = "; ".join(f"{model}: {kind}{' on ' + where if where else ''}" for model, kind, where in weights)
    on_card = [kind for _, kind, where in weights if where.startswith("cuda")]
    yield _check(
        "Is the precision one that tensor cores take?",
        all(kind != "fp32" for kind in on_card) if on_card else None,
        told or "no model tells its precision",
    )


def _power_mode(card: CardFacts) -> tuple[bool, str] | None:
    told, good = [], True
    if card.power.persistence is not None:
        good = card.power.persistence
        told.append(f"persistence {'on' if card.power.persistence else 'off'}")
    if card.power.limit is not None and card.power.default is not None:
        good = good and card.power.limit >= 0.95 * card.power.default
        told.append(f"limit {card.power.limit:.0f} W of {card.power.default:.0f} W")
    return (good, f"{card.gpu}: {', '.join(told)}") if told else None


def _kernels(facts: Facts) -> Iterator[Check]:
    sm = "; ".join(f"{card.gpu}: SMs {card.work.sm:.0%} while busy" for card in facts.cards if card.work.sm is not None)
    yield _check("Are kernels efficient?", None, f"{sm + '; ' if sm else ''}samples do not tell; Nsight Compute does")
    copied = "; ".join(
        f"{card.gpu}: {show_bytes(card.pcie.rate)}/s over PCIe" for card in facts.cards if card.pcie.rate is not None
    )
    yield _check(
        "Are copies made while computing?",
        None,
        f"{copied + '; ' if copied else ''}samples do not tell; Nsight Systems does",
    )
    pinned = facts.host.pinned
    if pinned is None:
        yield _check("Is pinned memory used for copies?", None, "Triton does not tell")
    else:
        good = None if not facts.cards else pinned > 0
        yield _check("Is pinned memory used for copies?", good, f"at most {show_bytes(pinned)} of Triton's pool in use")
