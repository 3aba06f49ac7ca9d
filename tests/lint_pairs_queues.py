"""Pairs for rules about batches, queues, instances, the response cache and sequences."""

from __future__ import annotations

from lint_pairs import INPUT, ONE, OUTPUT, RUNS, TWO, Pair, batching, config, model

LEVELS = "priority_levels: 2 default_priority_level: 2"
# Bounds that break no other rule: every wait of a lower level ends, and a default has its timeout.
LEVEL_2 = "priority_queue_policy { key: 2 value: { default_timeout_microseconds: 60000000 } }"
SOON = "max_queue_delay_microseconds: 300000"
PLAIN = batching("")
SIZES = ' input [ { name: "in" data_type: TYPE_INT32 dims: [ -1 ] RAGGED } ]\n' + OUTPUT.replace("[ 1 ]", "[ -1 ]")
SECOND = INPUT + INPUT.replace('"in"', '"b"').replace("dims", "OPTIONAL dims") + OUTPUT


def default(policy: str, group: str = TWO, more: str = "", **rest: float) -> dict[str, str | None]:
    return dict(batching(f"default_queue_policy {{ {policy} }} {more}", group, **rest))


BATCHES = [
    Pair("negative-batch", model(config(batch=-1)), model(config(batch=0)), "refused", "must be non-negative value"),
    Pair("batching-off", batching(SOON, batch=0), batching(SOON), "taken"),
    Pair(
        "preferred-size",
        batching("preferred_batch_size: [ 8 ]"),
        batching("preferred_batch_size: [ 4 ]"),
        "refused",
        "preferred size must be <= max batch size",
    ),
    Pair(
        "preferred-splits",
        batching("preferred_batch_size: [ 4 ]", batch=8, seconds=0.3),
        batching("preferred_batch_size: [ 4, 8 ]", batch=8, seconds=0.3),
        "taken",
    ),
    Pair(
        "delay-unit",
        batching("max_queue_delay_microseconds: 200"),
        batching("max_queue_delay_microseconds: 2000"),
        "taken",
    ),
    Pair("delay-long", batching("max_queue_delay_microseconds: 1200000"), batching(SOON), "taken"),
    Pair(
        "delay-over-timeout",
        default("default_timeout_microseconds: 200000", more=SOON),
        default("default_timeout_microseconds: 400000"),
        "taken",
        also=("waiting-leak",),
    ),
    Pair(
        "ordering-levels",
        batching(f"preserve_ordering: true {LEVELS} {LEVEL_2}", TWO),
        batching(f"{LEVELS} {LEVEL_2}", TWO),
        "refused",
        "Only one priority level is allowed when 'preserve_ordering' is true",
    ),
    Pair(
        "ordering-delay",
        default("timeout_action: DELAY default_timeout_microseconds: 5000", more="preserve_ordering: true"),
        default("default_timeout_microseconds: 5000"),
        "refused",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true",
        also=("ordering-void", "timeout-only-delays"),
    ),
    Pair("ordering-void", batching("preserve_ordering: true"), PLAIN, "taken"),
    Pair(
        "variable-dims",
        model(config(f"dynamic_batching {{ {SOON} }}", tensors=SIZES.replace("RAGGED", ""))),
        model(config(f"dynamic_batching {{ {SOON} }}", tensors=SIZES.replace("RAGGED", "allow_ragged_batch: true"))),
        "taken",
    ),
    Pair(
        "optional-inputs",
        model(config(f"dynamic_batching {{ {SOON} }}", tensors=SECOND.replace("OPTIONAL", "optional: true"))),
        model(config(f"dynamic_batching {{ {SOON} }}", tensors=SECOND.replace("OPTIONAL", ""))),
        "taken",
    ),
]
QUEUES = [
    Pair(
        "default-level",
        batching(f"priority_levels: 2 {LEVEL_2}", TWO),
        batching(f"{LEVELS} {LEVEL_2}", TWO),
        "refused",
        "default priority level must be in range [1, 2]",
    ),
    Pair(
        "policy-level",
        batching(f"{LEVELS} {LEVEL_2} priority_queue_policy {{ key: 3 value: {{ max_queue_size: 9 }} }}", TWO),
        batching(f"{LEVELS} {LEVEL_2}", TWO),
        "refused",
        "priority queue policy must have priority level in range [1, 2]",
    ),
    Pair(
        "policies-without-levels",
        batching("priority_queue_policy { key: 1 value: { max_queue_size: 1 } }", batch=1, seconds=0.2),
        PLAIN,
        "taken",
    ),
    Pair("default-without-levels", batching("default_priority_level: 2", batch=1, seconds=0.2), PLAIN, "taken"),
    Pair("one-level", batching("priority_levels: 1 default_priority_level: 1", TWO), PLAIN, "taken"),
    Pair(
        "starvation",
        batching(LEVELS, ONE, batch=1, seconds=0.1),
        batching(f"{LEVELS} {LEVEL_2}", TWO),
        "taken",
        also=("stall",),
    ),
    Pair("stall", default("max_queue_size: 100", ONE, seconds=0.002), PLAIN, "taken"),
    Pair(
        "override-without-timeout",
        default("allow_timeout_override: true", batch=1, seconds=0.6),
        default("allow_timeout_override: true default_timeout_microseconds: 60000000"),
        "taken",
    ),
    Pair(
        "timeout-only-delays",
        default("timeout_action: DELAY default_timeout_microseconds: 5000", batch=1, seconds=0.4),
        default("timeout_action: REJECT default_timeout_microseconds: 5000"),
        "taken",
    ),
    Pair(
        "timeout-unit",
        default("default_timeout_microseconds: 200", batch=1, seconds=0.4),
        default("default_timeout_microseconds: 200000"),
        "taken",
    ),
    Pair(
        "queue-below-batch",
        default("max_queue_size: 2", more=SOON, batch=8),
        default("max_queue_size: 32", more=SOON, batch=8),
        "taken",
    ),
    Pair(
        "waiting-leak",
        default("default_timeout_microseconds: 5000000", more="max_queue_delay_microseconds: 2000"),
        default("default_timeout_microseconds: 5000000"),
        "taken",
    ),
    Pair(
        "decoupled-queue",
        model(
            config(
                "model_transaction_policy { decoupled: true }\n"
                "dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
                batch=1,
                group=TWO,
                seconds=1,
            )
        ),
        model(config("model_transaction_policy { decoupled: true }", batch=1, group=TWO, seconds=1)),
        "taken",
    ),
]


def group(words: str) -> dict[str, str | None]:
    return dict(model(config(group=f"instance_group [ {{ {words} }} ]\n", batch=1, seconds=0.3)))


LIMITER = 'kind: KIND_CPU count: 2 rate_limiter { resources { name: "R" count: COUNT } }'
LIMITED = "--rate-limit=execution_count\n"
INSTANCES = [
    Pair(
        "cpu-with-gpus",
        group("kind: KIND_CPU gpus: [ 0 ]"),
        group("kind: KIND_GPU gpus: [ 0 ]"),
        "refused",
        "has kind KIND_CPU but specifies one or more GPUs",
    ),
    Pair(
        "auto-with-gpus",
        group("kind: KIND_AUTO gpus: [ 97 ]"),
        group("kind: KIND_AUTO"),
        "refused",
        "has kind KIND_CPU but specifies one or more GPUs",
    ),
    Pair(
        "profile",
        group('kind: KIND_CPU profile: "0"'),
        group("kind: KIND_CPU"),
        "refused",
        "profile field which is only supported for TensorRT models",
    ),
    Pair("instance-count", group("kind: KIND_CPU count: 0"), group("kind: KIND_CPU"), "taken"),
    Pair("passive-only", group("kind: KIND_CPU passive: true"), group("kind: KIND_CPU"), "kills"),
    Pair("python-instances", group("kind: KIND_AUTO count: 2"), group("kind: KIND_AUTO count: 1"), "taken"),
    Pair(
        "rate-limiter-off",
        group(LIMITER.replace("COUNT", "1")),
        {**group(LIMITER.replace("COUNT", "1")), "serve.args": LIMITED},
        "taken",
    ),
    Pair(
        "rate-resource",
        {**group(LIMITER.replace("COUNT", "2")), "serve.args": LIMITED + "--rate-limit-resource=R:1\n"},
        {**group(LIMITER.replace("COUNT", "2")), "serve.args": LIMITED + "--rate-limit-resource=R:2\n"},
        "refused",
        'Resource count for \\"R\\" is limited to 1',
    ),
    Pair(
        "rate-stray",
        {**group("kind: KIND_CPU"), "serve.args": LIMITED + "--rate-limit-resource=X:1\n"},
        {**group("kind: KIND_CPU"), "serve.args": LIMITED},
        "taken",
    ),
]
CACHE = "response_cache { enable: true }\n"
IDLE = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
TRANSACTIONS = [
    Pair(
        "cache-unsupported",
        model(config(CACHE + "model_transaction_policy { decoupled: true }")),
        model(config("model_transaction_policy { decoupled: true }")),
        "refused",
        "Response Cache does not currently support model cache-unsupported with 'decoupled' transaction policy",
    ),
    Pair(
        "cache-off",
        model(config(CACHE, tensors=INPUT + RUNS)),
        {**model(config(CACHE, tensors=INPUT + RUNS)), "serve.args": "--cache-config=local,size=1048576\n"},
        "taken",
    ),
    Pair("sequence-idle", model(config("sequence_batching {}")), model(config(IDLE)), "taken"),
]
PAIRS = BATCHES + QUEUES + INSTANCES + TRANSACTIONS
