"""The traffic of `bench tiers`: how much service a request asks for, what a machine sustains, what is sent to it.

Pure arithmetic over declared traffic and samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Literal

from config_gen.sla.arrivals import Z95
from config_gen.sla.spec import Lengths, LlmTraffic
from loadtest.run import LoadtestError
from loadtest.samples import Sample

Scenario = Literal["mixed", "overload", "promise"]
LOADS: dict[Scenario, float] = {"mixed": 1.3, "overload": 1.3, "promise": 0.9}
BESIDE = 0.5  # of capacity, that the last tier asks for while the first alone overloads the machine
TEMPLATE = 14  # tokens of the chat template that are in no page of the prefix cache


def mean(lengths: Lengths) -> float:
    """Of a lognormal length: median * exp(sigma² / 2)."""
    sigma = log(lengths.p95 / lengths.median) / Z95
    return lengths.median * exp(sigma * sigma / 2)


def service(shape: LlmTraffic) -> float:
    """Tokens that a request of the tier makes the engine compute, on average; a shared prefix is cached."""
    return TEMPLATE + mean(shape.prompt) + mean(shape.output)


def shares(traffic: Mapping[str, LlmTraffic]) -> dict[str, float]:
    """Each tier's part of the service asked for."""
    asked = {tier: shape.rate * service(shape) for tier, shape in traffic.items()}
    return {tier: part / sum(asked.values()) for tier, part in asked.items()}


def measured(scenario: Scenario, traffic: Mapping[str, LlmTraffic]) -> dict[str, LlmTraffic]:
    """The traffic whose capacity the scenario's load is a multiple of: all of it, or the first tier alone."""
    first = next(iter(traffic))
    return {first: traffic[first]} if scenario == "overload" else dict(traffic)


def offered(
    scenario: Scenario, load: float, sustained: float, traffic: Mapping[str, LlmTraffic]
) -> dict[str, LlmTraffic]:
    """`traffic` at the rates of the scenario, when the machine sustains so many requests/s of the measured traffic."""
    first, last = next(iter(traffic)), list(traffic)[-1]
    if scenario != "overload":
        scale = load * sustained / sum(shape.rate for shape in traffic.values())
        return {tier: _at(shape, shape.rate * scale) for tier, shape in traffic.items()}
    beside = BESIDE * sustained * service(traffic[first]) / service(traffic[last])
    return {first: _at(traffic[first], load * sustained), last: _at(traffic[last], beside)}


def _at(shape: LlmTraffic, rate: float) -> LlmTraffic:
    return shape.model_copy(update={"rate": rate})


def sustains(samples: Sequence[Sample], traffic: Mapping[str, LlmTraffic], begin: int, end: int) -> float:
    """Requests/s of `traffic` that a closed burst shows: service done in [begin, end) over that of a mean request.

    Service, not answers: a burst starts with prompts only, and rates of answers tell whichever part of the work falls
    into the window. A prompt is done with its first token; one whose answer was cut off counts as a mean one.
    """
    done = 0.0
    for sample in samples:
        shape = traffic[sample.tier]
        if sample.first is not None and begin <= sample.first < end:
            known = sample.prompt_tokens - sample.cached_tokens
            done += known if sample.prompt_tokens else TEMPLATE + mean(shape.prompt)
        done += sum(n for time, n in sample.messages if begin <= time < end)
    if done == 0:
        errors = list(dict.fromkeys(sample.error for sample in samples)) or ["nothing was sent"]
        raise LoadtestError(f"capacity: no token came back in {(end - begin) / 1e9:g} s: {errors[0]}")
    asked = sum(shape.rate * service(shape) for shape in traffic.values())
    return done / ((end - begin) / 1e9) / asked * sum(shape.rate for shape in traffic.values())
