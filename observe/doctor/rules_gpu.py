"""Rules on GPUs: full and idle, busy at something else than computing, and whether more of them help.

Each sees one card among all facts. Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from observe.amounts import listed
from observe.doctor.facts import Facts
from observe.doctor.finding import Finding, beyond, confidence
from observe.doctor.machine import CardFacts
from observe.doctor.say import amount, known, percent

IDLE, FULL = (
    0.4,
    0.6,
)  # compute and memory of a card that is full and idle; reported: 23 % and 64 %, one at a time 15 to 35 %
CROWDED = 0.2  # share of the samples with requests waiting
BUSY_SHARE, BUSY_SECONDS = 0.3, 5.0  # of samples in which a card is busy, to be judged by them
TENSOR = 0.4  # share of the time on tensor cores; reported: 95 % busy with 40 %
STREAMING = 0.6  # memory bandwidth in use: then decoding is bound by it, as it must be
COPIES, CORE = 10e9, 0.9  # bytes a second over PCIe, and cores of a process, that explain a card that waits
HOT, ROOMY = 0.85, 0.7  # compute and memory of a card of which another one would help
CRAMMED = 0.9  # memory that is to be mended before anything is added
OVERSTATED = {"nvml_utilization_percent", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"}


def full_and_idle(facts: Facts, card: CardFacts) -> Finding | None:
    crowd = card.crowd
    if crowd.share is None or crowd.share < CROWDED or crowd.compute is None or crowd.compute >= IDLE:
        return None
    if card.memory is None or card.memory < FULL:
        return None
    return Finding(
        "full-idle",
        "full but idle",
        card.gpu,
        "problem",
        confidence(
            card.seconds * crowd.share,
            beyond(-crowd.compute, -IDLE, -0.15),
            ("even the driver says so, which overstates", card.source in OVERSTATED or None),
        ),
        (
            percent("of the compute in use while requests waited", crowd.compute, card.source),
            percent("of its memory in use", card.memory, "memory used / total"),
            percent(
                "of the samples had requests waiting",
                crowd.share,
                "gapless_waiting, nv_inference_pending_request_count",
            ),
        ),
        f"let more requests run at once on {card.gpu} (max_num_seqs, max_batch_size) before any card is added",
    )


def not_on_tensor_cores(facts: Facts, card: CardFacts) -> Finding | None:
    """Busy by the driver's word, and hardly computing; decoding that is bound by memory bandwidth is not meant."""
    if (
        not much_busy(card)
        or card.work.tensor is None
        or card.work.tensor >= TENSOR
        or (card.work.dram or 0) >= STREAMING
    ):
        return None
    if card.work.tensor_late is not None and card.work.tensor_late >= TENSOR:
        return None  # it was warming up
    why, do = _instead(facts, card)
    return Finding(
        "not-on-tensor-cores",
        "busy, but not on tensor cores",
        card.gpu,
        "problem",
        confidence(card.busy_seconds, beyond(-card.work.tensor, -TENSOR, 0), (why, True if why else None)),
        known(
            percent("busy", card.utilization or 0, "utilization"),
            percent("on tensor cores meanwhile", card.work.tensor, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
            None if card.work.sm is None else percent("of the SMs at work", card.work.sm, "DCGM_FI_PROF_SM_ACTIVE"),
            None
            if card.work.dram is None
            else percent("of the memory bandwidth in use", card.work.dram, "DCGM_FI_PROF_DRAM_ACTIVE"),
            None
            if card.pcie.rate is None
            else amount("over PCIe", card.pcie.rate, "PCIe bytes a second", a_second=True),
        ),
        f"{do} ({card.gpu})",
    )


def _instead(facts: Facts, card: CardFacts) -> tuple[str, str]:
    """What a card most likely does instead, and what to do; no reason where nothing points to one."""
    if (card.pcie.rate or 0) >= COPIES:
        return "it copies over PCIe", "keep data on the GPU and copy from pinned memory while computing"
    bound = [model for model, cores in facts.host.processes.items() if cores >= CORE]
    if bound and (card.work.sm is None or card.work.sm < 0.5):
        return (
            f"the process of {listed(bound)} fills a core (host-bound)",
            "do less in Python between kernels: larger batches, preparing on the GPU, CUDA graphs",
        )
    plain = [
        llm.model for llm in facts.llms if (llm.info.get("weights"), llm.info.get("device", "")[:4]) == ("fp32", "cuda")
    ]
    if plain:
        return (
            f"{listed(plain)} computes in fp32",
            "serve in fp16 or bf16 (weights in the SLA file), which tensor cores take",
        )
    return (
        "",
        "see with Nsight Systems whether it copies, compiles kernels or waits for the host, and warm up what compiles",
    )


def more_replicas(facts: Facts, card: CardFacts) -> Finding | None:
    """Compute is short and memory is not: another replica helps, on another card; here it only contends."""
    if card.compute is None or card.compute <= HOT or card.memory is None or card.memory >= ROOMY:
        return None
    waits = None if card.crowd.share is None else card.crowd.share >= CROWDED
    return Finding(
        "replicas-help",
        "more replicas help",
        card.gpu,
        "problem" if waits else "hint",
        confidence(
            card.seconds,
            beyond(card.compute, HOT, 1),
            ("requests wait", waits),
            ("a counter of the card says so, not only the driver", None if card.source in OVERSTATED else True),
        ),
        (
            percent("of the compute in use", card.compute, card.source),
            percent("of its memory in use", card.memory, "memory used / total"),
        ),
        f"add a replica on another card, not on {card.gpu}, where both would only contend",
    )


def memory_first(facts: Facts, card: CardFacts) -> Finding | None:
    """Memory is short and compute is not: replicas would need what is missing."""
    if card.memory is None or card.memory <= CRAMMED or card.compute is None:
        return None
    waits = None if card.crowd.share is None else card.crowd.share >= CROWDED
    used = card.crowd.compute if waits and card.crowd.compute is not None else card.compute
    if waits is False or used >= IDLE or (waits is None and used < 0.1):
        return None
    return Finding(
        "memory-first",
        "mend memory before adding replicas",
        card.gpu,
        "problem" if waits else "hint",
        confidence(card.seconds, beyond(-used, -IDLE, -0.1), ("requests wait", waits)),
        (
            percent("of its memory in use", card.memory, "memory used / total"),
            percent("of the compute in use", used, card.source),
        ),
        f"make room on {card.gpu} first: smaller weights, fewer idle models, a shorter max_model_len; add no replicas",
    )


def much_busy(card: CardFacts) -> bool:
    return card.busy_seconds >= BUSY_SECONDS and (card.busy_share or 0) >= BUSY_SHARE
