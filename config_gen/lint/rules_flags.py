"""Rules about the flags a server is launched with."""

from __future__ import annotations

from collections.abc import Iterator

from config_gen.lint.flags import KNOWN
from config_gen.lint.repository import Repository
from config_gen.lint.rule import Spot, cut, repository_rule

METRICS = ("counter_latencies", "summary_latencies", "summary_quantiles", "histogram_latencies")
DEPRECATED = {
    "strict-model-config": "--disable-auto-complete-config",
    "response-cache-byte-size": "--cache-config=local,size=BYTES",
}
SMALLEST_SHM = 4 << 20  # bytes
CONTAINER_SHM = 64 << 20  # bytes of /dev/shm in a container, unless told otherwise
SMALLEST_CACHE = 1024  # bytes: below, the local cache cannot even hold its own books


@repository_rule(
    "unknown-flag",
    "error",
    why="tritonserver ends at once on a flag that it does not know (the list is that of 2.51).",
    fix="Write --name=value with dashes; look the name up in tritonserver --help.",
)
def unknown_flag(repository: Repository) -> Iterator[Spot]:
    for flag in repository.flags.flags:
        if flag.name not in KNOWN:
            yield Spot(repository.flags.file, flag.line, cut(flag.name))


@repository_rule(
    "deprecated-flag",
    "note",
    why="tritonserver still takes the flag, with a warning; a later one may not.",
    fix="Use what has taken its place.",
)
def deprecated_flag(repository: Repository) -> Iterator[Spot]:
    for flag in repository.flags.flags:
        if flag.name in DEPRECATED:
            yield Spot(repository.flags.file, flag.line, f"--{flag.name}; now {DEPRECATED[flag.name]}")


@repository_rule(
    "load-model-mode",
    "error",
    why="tritonserver ends at once on --load-model without --model-control-mode=explicit.",
    fix="Add --model-control-mode=explicit.",
)
def load_model_mode(repository: Repository) -> Iterator[Spot]:
    flags = repository.flags
    if flags.value("model-control-mode") != "explicit":
        for flag in flags.all("load-model")[:1]:
            yield Spot(flags.file, flag.line, "--load-model without --model-control-mode=explicit")


@repository_rule(
    "load-model-unknown",
    "error",
    why="tritonserver ends when a model that it is to load is not in the repository.",
    fix="Name a folder of the repository, or * for all.",
)
def load_model_unknown(repository: Repository) -> Iterator[Spot]:
    for flag in repository.flags.all("load-model"):
        if flag.value != "*" and flag.value not in repository.models:
            yield Spot(repository.flags.file, flag.line, f"no model '{cut(flag.value)}'")


@repository_rule(
    "nothing-loaded",
    "warning",
    why="In explicit mode nothing is loaded that is not asked for, and the server counts as ready with no model.",
    fix="Add --load-model=NAME, or --load-model=* for all.",
)
def nothing_loaded(repository: Repository) -> Iterator[Spot]:
    flags = repository.flags
    if flags.value("model-control-mode") == "explicit" and not flags.has("load-model"):
        yield Spot(flags.file, flags.all("model-control-mode")[-1].line, "explicit mode without --load-model")


@repository_rule(
    "failure-hidden",
    "warning",
    why="The server stays up and says that it is ready while a model is missing: with --exit-on-error=false where its "
    "configuration was refused, with --strict-readiness=false also where its load failed.",
    fix="Leave the flag out, or ask /v2/models/NAME/ready for each model.",
)
def failure_hidden(repository: Repository) -> Iterator[Spot]:
    for name in ("exit-on-error", "strict-readiness"):
        if repository.flags.value(name).lower() in ("false", "0"):
            yield Spot(repository.flags.file, repository.flags.all(name)[-1].line, f"--{name}=false")


@repository_rule(
    "cache-size",
    "error",
    why="The size is in bytes, and this one does not hold the cache's own books: the server ends at once.",
    fix="1 MiB is 1048576.",
)
def cache_size(repository: Repository) -> Iterator[Spot]:
    for flag, key, value in repository.flags.settings("cache-config", "local"):
        if key == "size" and value.isdecimal() and int(value) < SMALLEST_CACHE:
            yield Spot(repository.flags.file, flag.line, f"a cache of {int(value)} bytes")


@repository_rule(
    "metrics-key",
    "warning",
    why="Triton passes settings of --metrics-config by that it does not know: the metric is not there.",
    fix=f"Known are {', '.join(METRICS)}.",
)
def metrics_key(repository: Repository) -> Iterator[Spot]:
    for flag, key, _ in repository.flags.settings("metrics-config"):
        if key not in METRICS:
            yield Spot(repository.flags.file, flag.line, f"unknown setting {cut(key)}")


@repository_rule(
    "metrics-quantiles",
    "warning",
    why="Quantiles belong to summaries, which are off unless asked for.",
    fix="Add --metrics-config=summary_latencies=true.",
)
def metrics_quantiles(repository: Repository) -> Iterator[Spot]:
    found = {key: (flag, value) for flag, key, value in repository.flags.settings("metrics-config")}
    if "summary_quantiles" in found and found.get("summary_latencies", (None, ""))[1].lower() not in ("true", "1"):
        yield Spot(repository.flags.file, found["summary_quantiles"][0].line, "quantiles without summary_latencies")


@repository_rule(
    "metrics-histogram",
    "warning",
    why="Triton's only histogram is the time to the first response of decoupled models; for other models there is none "
    "(and none at all in 2.51).",
    fix="Use summary_latencies, or metrics of the model's own.",
)
def metrics_histogram(repository: Repository) -> Iterator[Spot]:
    read = [model for model in repository.models.values() if model.config is not None]
    for flag, key, value in repository.flags.settings("metrics-config"):
        if key == "histogram_latencies" and value.lower() in ("true", "1") and not any(m.decoupled for m in read):
            yield Spot(repository.flags.file, flag.line, "histograms, and no decoupled model")


@repository_rule(
    "shm-size",
    "error",
    why="The Python backend refuses less than 4 MiB of shared memory, in bytes, and loads no model.",
    fix="4 MiB is 4194304.",
)
def shm_size(repository: Repository) -> Iterator[Spot]:
    for flag, key, value in repository.flags.settings("backend-config", "python"):
        if key == "shm-default-byte-size" and value.isdecimal() and int(value) < SMALLEST_SHM:
            yield Spot(repository.flags.file, flag.line, f"{int(value)} bytes of shared memory")


@repository_rule(
    "shm-container",
    "warning",
    why="Every instance of a Python model takes this much of /dev/shm, of which a container has 64 MiB by default.",
    fix="Start the container with --shm-size=1g, or lower shm-default-byte-size.",
)
def shm_container(repository: Repository) -> Iterator[Spot]:
    read = [model for model in repository.models.values() if model.config is not None]
    instances = sum(model.instances for model in read if model.backend == "python")
    for flag, key, value in repository.flags.settings("backend-config", "python"):
        if key == "shm-default-byte-size" and value.isdecimal() and int(value) * instances > CONTAINER_SHM:
            what = f"{int(value) * instances >> 20} MiB of shared memory for {instances} Python instances"
            yield Spot(repository.flags.file, flag.line, what)
