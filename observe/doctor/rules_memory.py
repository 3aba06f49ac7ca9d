"""Rules on memory: KV pages that run short, prefixes that nobody shares, memory that is kept for nothing or leaks.

Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from collections.abc import Iterator

from observe import metrics
from observe.alerts_llm import PAGES
from observe.amounts import show_bytes, show_time
from observe.doctor.facts import Facts, LlmFacts
from observe.doctor.finding import Evidence, Finding, beyond, confidence
from observe.doctor.say import known, number, percent
from observe.memory_curve import Curve

CROWDED, OFTEN = 3.0, 0.1  # seconds with requests waiting, and their share of the window, at least
SHORT = 0.5  # of the samples with requests waiting, those with nearly all pages in use
STORM, LEAST_EVICTED = 0.2, 10  # preemptions for each request that ended; preemptions
USELESS, WORTH = 0.02, 2000  # share of prompt tokens from the cache; prompt tokens that were seen
LEAST_ENDED, LEAST_PROMPT = 50, 32  # requests; tokens of a prompt that has a prefix to share
WIDE, USUAL = 8.0, 4096  # times the longest request that max_model_len allows, and tokens that need no reason


def pages_short(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Nearly all pages are in use while requests wait."""
    short, evicted = llm.pages.full_waiting or 0.0, llm.preemptions or 0.0
    if llm.crowded < CROWDED or (llm.waiting_share or 0) < OFTEN or short < SHORT:
        return None
    if llm.slots is not None and llm.slots <= 1:
        return None
    slots_left = None if llm.full is None else llm.full < 0.5
    return Finding(
        "pages-short",
        "short of KV pages",
        llm.model,
        "cause",
        confidence(
            llm.crowded,
            beyond(llm.pages.peak or 0, PAGES, 0.97),
            ("requests are preempted", evicted > 0 or None),
            ("slots are left", slots_left or None),
        ),
        (
            percent(
                f"of the samples with requests waiting had over {PAGES:.0%} of the KV pages in use",
                short,
                "gapless_pages_used / gapless_pages_total",
            ),
            percent("of the pages in use at the peak", llm.pages.peak or 0, "gapless_pages_used / gapless_pages_total"),
            number("preemptions", evicted, metrics.PREEMPTIONS.name),
        ),
        f"raise {llm.model}'s kv_cache_memory, or lower max_model_len to what is really asked, or max_num_seqs",
    )


def preemption_storm(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Requests lose their pages, and with them work, so often that it costs."""
    if llm.finished is None:
        return None
    evicted, ended = llm.preemptions or 0.0, max(llm.finished, 1.0)
    if evicted < LEAST_EVICTED or evicted / ended < STORM:
        return None
    return Finding(
        "preemption-storm",
        "preemption storm",
        llm.model,
        "problem",
        confidence(
            llm.seconds,
            beyond(evicted / ended, STORM, 1),
            ("pages are short", None if llm.pages.full is None else llm.pages.full > 0.2),
        ),
        (
            number(
                "preemptions for each request that ended",
                evicted / ended,
                "gapless_preemptions_total / gapless_finished_total",
            ),
            number("preemptions", evicted, metrics.PREEMPTIONS.name),
        ),
        f"let {llm.model} run fewer at once, or with more pages: lower max_num_seqs, raise kv_cache_memory",
    )


def prefix_useless(facts: Facts, llm: LlmFacts) -> Finding | None:
    """It is on, prompts are long enough, and hardly anything is found."""
    if llm.info.get("prefix_cache") == "off" or llm.hits is None or llm.hits > USELESS:
        return None
    if (
        llm.finished is None
        or llm.finished < LEAST_ENDED
        or (llm.prompt_tokens or 0) < max(WORTH, LEAST_PROMPT * llm.finished)
    ):
        return None
    told = (
        "the SLA file declares shared_prefix, and requests do not begin alike"
        if llm.shared
        else "requests share no prefix"
    )
    return Finding(
        "prefix-useless",
        "the prefix cache finds nothing",
        llm.model,
        "problem" if llm.shared else "hint",
        confidence(llm.seconds, beyond(llm.finished, LEAST_ENDED, 500)),
        (
            percent(
                "of the prompt tokens came from the cache",
                llm.hits,
                "gapless_prefix_hit_tokens_total / gapless_prompt_tokens_total",
            ),
            number("requests ended", llm.finished, metrics.FINISHED.name),
        ),
        f"{told}: put what they have in common (system prompt, documents) first, to the token, and what differs last",
    )


def too_wide(facts: Facts, llm: LlmFacts) -> Finding | None:
    """max_model_len is several times what anybody asks."""
    longest = (llm.prompts.longest or 0) + (llm.outputs.longest or 0)
    try:
        allowed = float(llm.info.get("max_model_len", ""))
    except ValueError:
        return None
    if llm.prompts.count < 100 or not longest or allowed < WIDE * longest or allowed <= USUAL:
        return None
    return Finding(
        "too-wide",
        "max_model_len is wider than needed",
        llm.model,
        "hint",
        confidence(llm.seconds, beyond(allowed / longest, WIDE, 4 * WIDE)),
        (
            number("max_model_len", allowed, metrics.ENGINE.name, "tokens"),
            number(
                "longest prompt and answer together, at most",
                longest,
                "gapless_prompt_length_tokens, gapless_output_length_tokens",
                "tokens",
            ),
        ),
        f"set {llm.model}'s max_model_len to the longest request that the business allows, so that none takes all",
    )


def leaks(curves: Iterator[tuple[str, Curve]]) -> Iterator[Finding]:
    """Memories that grow and do not come back. KV pages and what else runs on the machine are not among them."""
    for name, curve in curves:
        if curve.growth.ruling != "leak":
            continue
        grown, full = curve.last - curve.first, curve.until_full
        yield Finding(
            "leak",
            "memory leaks",
            name,
            "problem",
            confidence(curve.seconds, beyond(grown / max(curve.first, 1.0), 0.005, 0.1)),
            known(
                Evidence(f"{show_bytes(grown)} more than {show_time(curve.seconds)} before", grown, "B", name),
                None if full is None else Evidence(f"in {show_time(full)} it reaches its limit", full, "s", name),
            ),
            f"find what {name} keeps (gapless observe --memory shows the curve); until then restart it at quiet hours",
        )
