"""Rules on where requests wait: before they are sent, in Triton, in the scheduler, for pages; and on too many of them.

Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from observe import metrics, triton_metrics
from observe.doctor.facts import ClientFacts, Facts, LlmFacts, UnaryFacts
from observe.doctor.finding import Finding, beyond, confidence
from observe.doctor.rules_memory import SHORT
from observe.doctor.say import known, number, part_of, percent, seconds

MOSTLY = 0.5  # of the whole time of a request, spent waiting
FELT = 0.1  # s of waiting
STANDING = 0.3  # share of the samples with requests waiting
LAG = 0.05  # s that a load generator may send late at P99
LEAST_ENDED = 20
GROWS, LONGER = 2.0, 8.0  # times the requests waiting, from the first third of the window to the last, and at least


def in_the_client(facts: Facts) -> Finding | None:
    """What a load generator could not send in time, it counts as latency of the server."""
    client = facts.client
    if client is None or client.send_lag <= LAG:
        return None
    return Finding(
        "queue-client",
        "requests queue in the load generator",
        "client",
        "cause",
        confidence(facts.seconds, beyond(client.send_lag, LAG, 10 * LAG)),
        (seconds("sent late, at P99", client.send_lag, "--samples"),),
        "load from another machine, or less: what the client measured is its own delay",
    )


def before_the_server(client: ClientFacts, model: str, tier: str, inside: float) -> Finding | None:
    """Between the client and the model: network, Triton's front end, a client that reads slowly.

    `inside`: the median that the model saw of this tier while the client loaded it, in seconds.
    """
    whole = client.whole.get((model, tier))
    if whole is None or whole - inside < FELT or whole < 2 * inside or client.send_lag > LAG:
        return None
    return Finding(
        "queue-network",
        "time is lost between client and model",
        model,
        "problem",
        confidence((client.ended - client.began) / 1e9, beyond(whole / inside, 2, 5)),
        (
            seconds(f"median of {tier}'s requests at the client", whole, "--samples"),
            seconds("inside of the model", inside, metrics.E2E.name),
        ),
        "look at the network, proxies and how fast the client reads; the model is not what takes long",
    )


def in_the_scheduler(facts: Facts, llm: LlmFacts) -> Finding | None:
    """The most urgent tier spends most of its time waiting to begin: for pages, or for a slot."""
    urgent = llm.urgent
    if urgent is None or urgent.queue.count < LEAST_ENDED or (urgent.waiting_share or 0) < STANDING:
        return None
    waits, whole = urgent.queue.mean or 0.0, urgent.e2e.mean or 0.0
    if waits < FELT or waits < MOSTLY * whole:
        return None
    pages = (llm.pages.full_waiting or 0) >= SHORT
    return Finding(
        "queue-pages" if pages else "queue-scheduler",
        f"requests queue {'for KV pages' if pages else 'in the scheduler'}",
        llm.model,
        "problem",
        confidence(llm.seconds, beyond(waits / max(whole, 1e-9), MOSTLY, 0.9)),
        known(
            part_of(f"of {urgent.name}", waits, whole, "gapless_queue_seconds, gapless_e2e_seconds"),
            number("waiting on average", llm.waiting or 0.0, metrics.WAITING.name),
            number("refused for it", llm.refused, metrics.REJECTS.name) if llm.refused else None,
        ),
        f"plan {llm.model} for the rate that really comes (gapless plan), or give {urgent.name} a max_queue",
    )


def in_triton(facts: Facts, unary: UnaryFacts) -> Finding | None:
    """Requests of a model that answers in one piece wait longer than they are computed."""
    if (unary.requests or 0) < LEAST_ENDED or unary.queue is None or unary.computing is None:
        return None
    whole = unary.queue + unary.computing + (unary.moving or 0)
    if unary.queue < FELT / 5 or unary.queue < MOSTLY * whole or (unary.pending_share or 0) < STANDING:
        return None
    return Finding(
        "queue-triton",
        "requests queue in Triton",
        unary.model,
        "problem",
        confidence(unary.seconds, beyond(unary.queue / whole, MOSTLY, 0.9)),
        known(
            part_of("", unary.queue, whole, triton_metrics.spent("queue")),
            None if unary.pending is None else number("waiting on average", unary.pending, triton_metrics.PENDING),
            None
            if unary.batch is None
            else number("requests a batch", unary.batch, "nv_inference_count / nv_inference_exec_count"),
            number("refused for it", unary.refused, triton_metrics.FAILED) if unary.refused else None,
        ),
        f"give {unary.model} larger batches or more instances, where compute is left (gapless plan finds out)",
    )


def moving_data(facts: Facts, unary: UnaryFacts) -> Finding | None:
    """More time goes into getting inputs and outputs in place than into computing."""
    if (unary.requests or 0) < LEAST_ENDED or unary.moving is None or unary.computing is None:
        return None
    part = unary.moving / max(unary.moving + unary.computing, 1e-9)
    if part < MOSTLY or unary.moving < FELT / 20:
        return None
    return Finding(
        "moving-data",
        "time goes into moving data",
        unary.model,
        "problem",
        confidence(unary.seconds, beyond(part, MOSTLY, 0.9)),
        (
            percent(
                "of the time of a batch is inputs and outputs",
                part,
                "nv_inference_compute_input_duration_us, nv_inference_compute_output_duration_us",
            ),
            seconds(
                "a request",
                unary.moving,
                "nv_inference_compute_input_duration_us, nv_inference_compute_output_duration_us",
            ),
        ),
        f"send {unary.model} smaller types, prepare inputs where they are used, and copy from pinned memory",
    )


def too_much(facts: Facts, llm: LlmFacts) -> Finding | None:
    """A queue that grows all along: more comes than is served. Of who is not urgent, nor late, it is a hint."""
    growing = [
        tier for tier in llm.tiers if tier.waiting_thirds and _grows(*tier.waiting_thirds) and (tier.service or 0) > 0
    ]
    if not growing:
        return None
    tier = growing[0]
    first, last = tier.waiting_thirds or (0.0, 0.0)
    return Finding(
        "too-much",
        f"more of {tier.name} comes than is served",
        llm.model,
        "problem" if tier is llm.urgent or tier.missed else "hint",
        confidence(
            llm.seconds,
            beyond(last / max(first, 1.0), GROWS, 4 * GROWS),
            ("the engine is busy", None if llm.busy is None else llm.busy > 0.8),
        ),
        known(
            number(
                f"waiting in the last third of the window, {first:.3g} in the first",
                last,
                f'gapless_waiting{{tier="{tier.name}"}}',
            ),
            None if llm.busy is None else percent("of the time inside of steps", llm.busy, metrics.STEP.name),
        ),
        f"send less of {tier.name}, bound its queue tighter (max_queue, queue_timeout), or plan {llm.model} for what "
        "really comes (gapless plan)",
    )


def too_much_unary(facts: Facts, unary: UnaryFacts) -> Finding | None:
    if unary.pending_thirds is None or not _grows(*unary.pending_thirds):
        return None
    first, last = unary.pending_thirds
    return Finding(
        "too-much",
        "more requests come than are served",
        unary.model,
        "problem",
        confidence(unary.seconds, beyond(last / max(first, 1.0), GROWS, 4 * GROWS)),
        (
            number(
                f"waiting in the last third of the window, {first:.3g} in the first",
                last,
                triton_metrics.PENDING,
            ),
        ),
        f"bound {unary.model}'s queue, send less, or plan it for this rate (gapless plan)",
    )


def _grows(first: float, last: float) -> bool:
    return last >= LONGER and last >= GROWS * first
