"""Rules about queues of the dynamic batcher: priorities, timeouts, bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

BATCHING, DEFAULT, LEVELS = "dynamic_batching", "default_queue_policy", "priority_queue_policy"
SHORT = 1_000  # us: below a millisecond


def _policies(model: Model) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    """Queue policies that count, with their paths in the file."""
    batching = model.config.dynamic_batching
    if batching.HasField(DEFAULT):
        yield batching.default_queue_policy, (BATCHING, DEFAULT)
    if batching.priority_levels:
        keys = [field.at("key").text for field in model.root.at(BATCHING).all(LEVELS)]
        for key, policy in sorted(batching.priority_queue_policy.items()):
            place = len(keys) - 1 - keys[::-1].index(str(key)) if str(key) in keys else 0
            yield policy, (BATCHING, LEVELS, place, "value")


@model_rule(
    "default-level",
    "error",
    why="Triton refuses levels without the one of requests that name none; left out it is 0, which is no level.",
    fix="Set default_priority_level from 1 (first) to priority_levels (last).",
)
def default_level(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        yield at(model, f"default_priority_level {default} of {levels} levels", BATCHING, "default_priority_level")


@model_rule(
    "policy-level",
    "error",
    why="Triton refuses a queue policy for a level that is not there.",
    fix="Key the policies by 1 to priority_levels.",
)
def policy_level(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    for key in sorted(batching.priority_queue_policy):
        if batching.priority_levels and not 1 <= key <= batching.priority_levels:
            yield at(model, f"policy for level {key} of {batching.priority_levels}", BATCHING, LEVELS)


@model_rule(
    "policies-without-levels",
    "warning",
    why="Without priority_levels there is one queue, and its policy is default_queue_policy; those by level bound "
    "nothing.",
    fix="Set priority_levels, or move the bounds to default_queue_policy.",
)
def policies_without_levels(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if batching.priority_queue_policy and not batching.priority_levels:
        yield at(model, "priority_queue_policy without priority_levels", BATCHING, LEVELS)


@model_rule(
    "default-without-levels",
    "warning",
    why="Without priority_levels there are no priorities: requests are served in the order of arrival.",
    fix="Set priority_levels, or remove default_priority_level.",
)
def default_without_levels(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if batching.default_priority_level and not batching.priority_levels:
        yield at(model, "default_priority_level without priority_levels", BATCHING, "default_priority_level")


@model_rule(
    "one-level",
    "note",
    why="One level puts nothing before anything else, and costs what any level costs: the batcher fetches no work "
    "ahead.",
    fix="Remove priority_levels, or declare two.",
)
def one_level(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.batches and model.config.dynamic_batching.priority_levels == 1:
        yield at(model, "priority_levels: 1", BATCHING, "priority_levels")


@model_rule(
    "starvation",
    "note",
    why="Levels are absolute: a lower one runs only while all higher ones are empty, without aging. Under steady load "
    "above it waits for ever.",
    fix="Bound the wait by a timeout (REJECT) for the lower levels, or share by weights inside the model.",
)
def starvation(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if not model.batches or batching.priority_levels < 2:
        return
    for level in range(2, min(batching.priority_levels, 64) + 1):
        own = level in batching.priority_queue_policy
        policy = batching.priority_queue_policy[level] if own else batching.default_queue_policy
        if not policy.default_timeout_microseconds or policy.timeout_action == 1:
            yield at(model, f"level {level} has no timeout that ends its wait", BATCHING, "priority_levels")
            return


@model_rule(
    "stall",
    "warning",
    why="With levels, or a default policy with a timeout, an override or a bound, the batcher fetches no work ahead; "
    "with a single instance it then misses its wake-up now and then and sleeps 500 ms beside waiting requests.",
    fix="Run two instances, keep the tiers inside the model, or measure P99 at low concurrency, closed loop.",
)
def stall(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    policy = batching.default_queue_policy
    bounded = policy.default_timeout_microseconds or policy.allow_timeout_override or policy.max_queue_size
    if model.batches and model.instances == 1 and not _several_devices(model) and (batching.priority_levels or bounded):
        name = "priority_levels" if batching.priority_levels else DEFAULT
        yield at(model, f"{name} with a single instance", BATCHING, name)


def _several_devices(model: Model) -> bool:
    return any(len(group.gpus) > 1 for group in model.config.instance_group)


@model_rule(
    "override-without-timeout",
    "warning",
    why="A request's own timeout can only shorten the default one; where that is 0, which is none, it is ignored.",
    fix="Set default_timeout_microseconds to the longest wait that makes sense.",
)
def override_without_timeout(model: Model, repository: Repository) -> Iterator[Spot]:
    for policy, path in _policies(model):
        if model.batches and policy.allow_timeout_override and not policy.default_timeout_microseconds:
            yield at(model, "allow_timeout_override with a default timeout of 0", *path, "allow_timeout_override")


@model_rule(
    "timeout-only-delays",
    "note",
    why="DELAY ends no wait: a request that has timed out goes behind all others and is served whenever nobody else "
    "waits.",
    fix="Use REJECT where somebody waits for the answer.",
)
def timeout_only_delays(model: Model, repository: Repository) -> Iterator[Spot]:
    for policy, path in _policies(model):
        if model.batches and policy.timeout_action == 1 and policy.default_timeout_microseconds:
            yield at(model, "timeout_action: DELAY", *path, "timeout_action")


@model_rule(
    "timeout-unit",
    "warning",
    why="The timeout is in microseconds; below a millisecond every request is refused that does not find an idle "
    "instance.",
    fix="1 ms is 1000.",
)
def timeout_unit(model: Model, repository: Repository) -> Iterator[Spot]:
    for policy, path in _policies(model):
        timeout = policy.default_timeout_microseconds
        if model.batches and policy.timeout_action == 0 and 0 < timeout < SHORT:
            yield at(model, f"a timeout of {timeout} us is {timeout / 1000:g} ms", *path)


@model_rule(
    "queue-below-batch",
    "warning",
    why="While the batcher waits for company a queue shorter than a batch fills up and refuses requests of an idle "
    "server (503, not counted by its failure metric); a full batch never forms.",
    fix="Make max_queue_size several times max_batch_size, or leave it out.",
)
def queue_below_batch(model: Model, repository: Repository) -> Iterator[Spot]:
    delay, most = model.config.dynamic_batching.max_queue_delay_microseconds, model.config.max_batch_size
    for policy, path in _policies(model):
        if model.batches and delay and 0 < policy.max_queue_size < most:
            what = f"max_queue_size {policy.max_queue_size}, max_batch_size {most}"
            yield at(model, what, *path, "max_queue_size")


@model_rule(
    "waiting-leak",
    "warning",
    why="A delay together with a default timeout lets throughput decay over minutes until the model is loaded again "
    "(server issue 8870), in all releases before August 2026.",
    fix="Use one of them, or a server with core PR 509.",
)
def waiting_leak(model: Model, repository: Repository) -> Iterator[Spot]:
    delay = model.config.dynamic_batching.max_queue_delay_microseconds
    for policy, path in _policies(model):
        if model.batches and delay and policy.default_timeout_microseconds:
            yield at(model, f"delay {delay} us and timeout {policy.default_timeout_microseconds} us", *path)
            return


@model_rule(
    "decoupled-queue",
    "warning",
    why="A decoupled model that returns from execute takes the next requests at once: the queue is empty but for an "
    "instant of a burst, and its bounds, timeouts and priorities hold nothing back.",
    fix="Keep limits inside the model.",
)
def decoupled_queue(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if model.batches and model.decoupled and (batching.priority_levels or batching.HasField(DEFAULT)):
        name = "priority_levels" if batching.priority_levels else DEFAULT
        yield at(model, f"{cut(name)} on a decoupled model", BATCHING, name)
