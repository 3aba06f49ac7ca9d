"""Rules on merging requests: not at all, too few at once, more than helps. Each sees facts and nothing else.

Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from statistics import median

from scipy.stats import mannwhitneyu, spearmanr

from observe import metrics, triton_metrics
from observe.doctor.facts import Facts, LlmFacts, Stretch, UnaryFacts
from observe.doctor.finding import Evidence, Finding, beyond, confidence
from observe.doctor.say import known, number, percent, seconds

PAGES = "gapless_pages_used / gapless_pages_total"
ALONE = 0.95  # of the samples with requests waiting, those with no more than one running
TOGETHER = 1.05  # tokens a step, or requests a batch, that are no batch yet
CROWDED = 3.0  # seconds in which requests waited, at least, and
OFTEN = 0.1  # their share of the window
WAITS = 0.3  # share of the samples with requests waiting, at which a limit is felt
ROOM = 0.7  # share of KV pages in use below which more requests fit
FULL = 0.9  # of the samples with requests waiting, those with every slot taken
LATER = 2.0  # times the P99; reported: 41 ms and 83 ms with batches of 16 and 32, for 3 % more throughput
GROWN = 1.3  # times the batch
RISEN = 0.1  # of the compute
CORRELATED = 0.6
LEAST_STRETCHES = 6
EDGE, LOST = 0.9, 0.05  # reported: beyond 90 % utilization, throughput falls by 5 to 8 %


def one_at_a_time(facts: Facts, llm: LlmFacts) -> Finding | None:
    """By numbers: requests wait while no more than one runs, and a step makes no more than one token.

    With more slots than one somebody urgent has to wait: what starts only in gaps waits on purpose.
    """
    if not _crowded(llm) or llm.alone is None or llm.alone < ALONE or not (llm.steps or llm.finished):
        return None
    if (llm.tokens_per_step or 0) > TOGETHER:
        return None
    several = llm.slots is not None and llm.slots > 1
    urgent = llm.urgent
    if several and (urgent is None or (urgent.waiting_share or 0) < WAITS or (llm.pages.peak or 0) > ROOM):
        return None
    serial = llm.info.get("mode", "serial") == "serial"
    what = "with mode continuous" if serial else "and look what holds its slots back"
    return Finding(
        "one-at-a-time",
        "one request at a time",
        llm.model,
        "cause",
        confidence(
            llm.crowded,
            beyond(llm.waiting or 0, 0, 4),
            ("a step makes one token", None if llm.tokens_per_step is None else True),
            ("the engine has one slot", None if llm.slots is None else llm.slots <= 1),
            ("KV pages lie unused", None if llm.pages.level is None else llm.pages.level < 1 - ROOM),
        ),
        _alone(llm),
        f"merge requests: give {llm.model} max_num_seqs 32 or more {what} (gapless plan finds how many)",
    )


def _alone(llm: LlmFacts) -> tuple[Evidence, ...]:
    told, alone = "of the samples with requests waiting had no more than one running", llm.alone or 0.0
    rate, pages = llm.tokens_per_step, llm.pages.level
    return known(
        percent(told, alone, "gapless_running, gapless_waiting"),
        number("waiting on average", llm.waiting or 0.0, metrics.WAITING.name),
        None if rate is None else number("tokens a step", rate, "gapless_output_tokens_total / gapless_steps_total"),
        None if llm.slots is None else number("slots", llm.slots, metrics.SLOTS.name),
        None if pages is None else percent("of the KV pages in use on average", pages, PAGES),
    )


def one_a_batch(facts: Facts, unary: UnaryFacts) -> Finding | None:
    """Requests stand in Triton's queue, and batches hold one."""
    queued = unary.pending_share is None or unary.pending_share >= WAITS
    waits = unary.queue is not None and unary.computing is not None and unary.queue > unary.computing > 0
    if (unary.executions or 0) < 20 or unary.batch is None or unary.batch > TOGETHER or not queued or not waits:
        return None
    queue, computing = unary.queue or 0.0, unary.computing or 0.0
    grows = None if unary.pending_thirds is None else unary.pending_thirds[1] > 1.5 * unary.pending_thirds[0]
    return Finding(
        "one-at-a-time",
        "one request at a time",
        unary.model,
        "cause",
        confidence(unary.seconds, beyond(queue / computing, 1, 4), ("the queue grows", True if grows else None)),
        known(
            number("requests a batch", unary.batch, "nv_inference_count / nv_inference_exec_count"),
            seconds("a request waits", queue, triton_metrics.spent("queue")),
            seconds("and is computed for", computing, triton_metrics.spent("compute_infer")),
            None if unary.pending is None else number("waiting on average", unary.pending, triton_metrics.PENDING),
        ),
        f"merge requests: give {unary.model} dynamic_batching and max_batch_size 8 or more (gapless plan)",
    )


def slots_tight(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Every slot is taken while urgent requests wait, and there is memory for more."""
    urgent = llm.urgent
    if not _crowded(llm) or llm.slots is None or llm.slots <= 1 or (llm.full or 0) < FULL:
        return None
    if urgent is None or (urgent.waiting_share or 0) < WAITS or llm.pages.peak is None or llm.pages.peak > ROOM:
        return None
    return Finding(
        "slots-tight",
        "max_num_seqs is too tight",
        llm.model,
        "hint" if facts.saturated else "cause",
        confidence(
            llm.crowded,
            beyond(llm.full or 0, FULL, 1),
            ("compute is left", None if facts.saturated is None else not facts.saturated),
        ),
        (
            percent(
                f"of the samples with requests waiting had all {llm.slots:.0f} slots taken",
                llm.full or 0,
                "gapless_running, gapless_slots",
            ),
            percent(
                f"of the samples had {urgent.name} waiting",
                urgent.waiting_share or 0,
                f'gapless_waiting{{tier="{urgent.name}"}}',
            ),
            percent("of the KV pages in use at the peak", llm.pages.peak, PAGES),
        ),
        f"raise {llm.model}'s max_num_seqs above {llm.slots:.0f}, as far as ITL keeps its target (gapless plan)",
    )


def latency_blind(facts: Facts, model: LlmFacts | UnaryFacts) -> Finding | None:
    """Larger batches drove utilization and P99 up, and throughput hardly: not a queue, which would do so, too."""
    parts = [it for it in model.stretches if None not in (it.use, it.late, it.batch, it.work)]
    if len(parts) < LEAST_STRETCHES or len({it.late for it in parts}) < 2 or len({it.use for it in parts}) < 2:
        return None
    parts.sort(key=lambda it: it.use or 0)
    low, high = parts[: len(parts) // 3], parts[-(len(parts) // 3) :]
    use, late, batch, work = ([_middle(it, name) for it in (low, high)] for name in ("use", "late", "batch", "work"))
    if min(late[0], batch[0], work[0]) <= 0:
        return None
    longer, more = late[1] / late[0], work[1] / work[0]
    together: float = spearmanr([it.use for it in parts], [it.late for it in parts]).statistic
    if (
        use[1] - use[0] < RISEN
        or batch[1] / batch[0] < GROWN
        or longer < LATER * max(1.0, more)
        or together < CORRELATED
    ):
        return None
    if any((it.waited or 0) > WAITS for it in high) or _within_promise(model, late[1]):
        return None
    option = "max_num_seqs, or give its tiers an ITL target" if isinstance(model, LlmFacts) else "max_batch_size"
    return Finding(
        "latency-blind",
        "batching is blind to latency",
        model.model,
        "cause",
        confidence(model.seconds, beyond(longer / max(1.0, more), LATER, 5), ("no queue explains it", True)),
        (
            percent(
                f"of the compute in use in the busiest third of the window, {use[0]:.0%} in the calmest",
                use[1],
                "utilization",
            ),
            seconds(f"P99 there, {late[0] * 1000:.3g} ms in the calmest third", late[1], "P99 of the same parts"),
            number("times the throughput for that", more, "work done a second in the same parts"),
            number("rank correlation of utilization and P99", together, f"{len(parts)} parts of the window"),
        ),
        f"make {model.model}'s batches smaller: lower {option} to where throughput still grows (gapless plan does)",
    )


def falls_beyond(facts: Facts, model: LlmFacts | UnaryFacts) -> Finding | None:
    """Throughput is lower beyond 90 % utilization than right below it, though requests wait."""
    parts = [it for it in model.stretches if it.use is not None and it.work]
    above = [it.work or 0 for it in parts if (it.use or 0) > EDGE and (it.waiting or 0) > 0]
    below = [it.work or 0 for it in parts if 0.7 <= (it.use or 0) <= EDGE]
    if len(above) < 3 or len(below) < 3:
        return None
    lost = 1 - median(above) / median(below)
    chance = float(mannwhitneyu(above, below, alternative="less").pvalue)
    if lost < LOST or chance > 0.05:
        return None
    return Finding(
        "falls-beyond",
        "throughput falls beyond 90 % utilization",
        model.model,
        "problem",
        confidence(model.seconds, beyond(lost, LOST, 0.2), ("requests waited meanwhile", True)),
        (
            percent(
                f"less is done a second beyond {EDGE:.0%} than between 70% and {EDGE:.0%}",
                lost,
                "work done a second, by utilization",
            ),
            number("chance that it is chance", chance, f"{len(above)} parts of the window against {len(below)}"),
        ),
        f"admit less: lower {model.model}'s max_num_seqs, or max_batch_size, or bound its tiers with max_queue",
    )


def _crowded(llm: LlmFacts) -> bool:
    return llm.crowded >= CROWDED and (llm.waiting_share or 0) >= OFTEN


def _middle(parts: list[Stretch], name: str) -> float:
    return float(median(getattr(it, name) for it in parts))


def _within_promise(model: LlmFacts | UnaryFacts, late: float) -> bool:
    """Every promise of a model that has some is kept: then latency was not forgotten."""
    if isinstance(model, UnaryFacts):
        return False
    return any(tier.promised for tier in model.tiers) and not any(tier.missed for tier in model.tiers)
