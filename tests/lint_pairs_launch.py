"""Pairs for rules about ensembles and launch flags."""

from __future__ import annotations

from lint_pairs import INPUT, OUTPUT, TWO, Files, Pair, config, model

GOOD = model(config())


def step(name: str = "NAME-step", source: str = "in", target: str = "out", key: str = "in", version: int = -1) -> str:
    return (
        f'{{ model_name: "{name}" model_version: {version} input_map {{ key: "{key}" value: "{source}" }}'
        f' output_map {{ key: "out" value: "{target}" }} }}'
    )


def ensemble(steps: str, name: str = "NAME", tensors: str = INPUT + OUTPUT, more: str = "") -> Files:
    platform = 'platform: "ensemble"\n'
    scheduling = f"ensemble_scheduling {{ step [ {steps} ] }}\n{more}"
    return {f"{name}/config.pbtxt": config(scheduling, tensors=tensors, group="", backend=platform), f"{name}/1": None}


def with_step(ensemble: Files, made: str | None = None) -> Files:
    return {**model(made or config(), "NAME-step"), **ensemble}


def two_steps(policy: str, second: str) -> Files:
    steps = step("NAME-a", target="mid") + ", " + step("NAME-b", source="mid")
    first = f"dynamic_batching {{ {policy} }}"
    models = {**model(config(first, group=TWO), "NAME-a"), **model(config(second, group=TWO), "NAME-b")}
    return {**models, **ensemble(steps)}


ALIKE = with_step(ensemble(step()))
LEVELS = (
    "priority_levels: 2 default_priority_level: 2"
    " priority_queue_policy { key: 2 value: { default_timeout_microseconds: 60000000 } }"
)
FLOAT = INPUT.replace("INT32", "FP32")
SECOND = INPUT + INPUT.replace('"in"', '"b"') + OUTPUT
ENSEMBLES = [
    Pair(
        "ensemble-platform",
        {
            "NAME/config.pbtxt": config("dynamic_batching {}", group="", backend='platform: "ensemble"\n'),
            "NAME/1": None,
        },
        ALIKE,
        "refused",
        "ensemble scheduling must be set for ensemble",
    ),
    Pair(
        "ensemble-model",
        ensemble(step()),
        ALIKE,
        "refused",
        "contains models that are not available or ambiguous",
    ),
    Pair(
        "ensemble-cycle",
        ensemble(step("NAME")),
        ALIKE,
        "refused",
        "circular dependency between ensembles",
    ),
    Pair(
        "ensemble-tensor",
        with_step(ensemble(step(key="wrong")), config(tensors=INPUT.replace("dims", "optional: true dims") + OUTPUT)),
        ALIKE,
        "refused",
        "is mapping to non-existing input wrong",
    ),
    Pair(
        "ensemble-unmapped",
        with_step(ensemble(step()), config(tensors=SECOND)),
        ALIKE,
        "refused",
        "input b in model ensemble-unmapped-step is not mapped to any ensemble tensors",
    ),
    Pair(
        "ensemble-unused",
        with_step(ensemble(step(), tensors=SECOND)),
        ALIKE,
        "refused",
        "is not used",
    ),
    Pair(
        "ensemble-type",
        with_step(ensemble(step(), tensors=FLOAT + OUTPUT)),
        ALIKE,
        "refused",
        "inconsistent data type: TYPE_FP32",
    ),
    Pair(
        "ensemble-batch",
        with_step(ensemble(step()), config(batch=2)),
        ALIKE,
        "refused",
        "which only allows maximum batch size to be 2",
    ),
    Pair(
        "ensemble-extra",
        with_step(ensemble(step(), more="instance_group [ { kind: KIND_CPU } ]")),
        ALIKE,
        "refused",
        "instance group should not be specified for ensemble",
    ),
    Pair("ensemble-levels", two_steps(LEVELS, ""), two_steps("", ""), "taken"),
]


def flags(text: str, files: Files = GOOD) -> Files:
    return {**files, "serve.args": text}


QUIET = flags("--log-verbose=0")
DECOUPLED = model(config("model_transaction_policy { decoupled: true }"))
FLAGS = [
    Pair("unknown-flag", flags("--max-queue=5"), QUIET, "ends", "unrecognized option '--max-queue=5'"),
    Pair("deprecated-flag", flags("--response-cache-byte-size=1048576"), QUIET, "taken", "has been deprecated"),
    Pair(
        "load-model-mode",
        flags("--load-model=NAME"),
        flags("--model-control-mode=explicit\n--load-model=NAME"),
        "ends",
        "load-model",
    ),
    Pair(
        "load-model-unknown",
        flags("--model-control-mode=explicit\n--load-model=other"),
        flags("--model-control-mode=explicit\n--load-model=*"),
        "ends",
        "failed to poll model 'other': model not found in any model repository",
    ),
    Pair(
        "nothing-loaded",
        flags("--model-control-mode=explicit"),
        flags("--model-control-mode=explicit\n--load-model=NAME"),
        "taken",
    ),
    Pair("failure-hidden", flags("--exit-on-error=false"), flags("--exit-on-error=true"), "taken"),
    Pair(
        "cache-size",
        flags("--cache-config=local,size=100"),
        flags("--cache-config=local,size=104857600"),
        "ends",
        "Failed to initialize LocalCache",
    ),
    Pair("metrics-key", flags("--metrics-config=summary_latency=true"), QUIET, "taken"),
    Pair(
        "metrics-quantiles",
        flags("--metrics-config=summary_quantiles=0.5:0.05"),
        flags("--metrics-config=summary_latencies=true\n--metrics-config=summary_quantiles=0.5:0.05"),
        "taken",
    ),
    Pair(
        "metrics-histogram",
        flags("--metrics-config=histogram_latencies=true"),
        flags("--metrics-config=histogram_latencies=true", DECOUPLED),
        "taken",
    ),
    Pair(
        "shm-size",
        flags("--backend-config=python,shm-default-byte-size=64"),
        flags("--backend-config=python,shm-default-byte-size=8388608"),
        "ends",
        "shm-default-byte-size can't be smaller than 4 MiBs",
    ),
    Pair(
        "shm-container",
        flags("--backend-config=python,shm-default-byte-size=67108865"),
        flags("--backend-config=python,shm-default-byte-size=67108864"),
        "taken",
    ),
]
PAIRS = ENSEMBLES + FLAGS
