"""What a served LLM took of its machine over a window of samples. Must not know what was asked of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from observe.window import NEVER, Values, Window


@dataclass(frozen=True)
class Use:
    """Shares are of 1; NaN where nobody said."""

    busy: float  # share of the time in which a step ran
    cores: float  # share of all cores that was busy
    running: float  # requests at once, on average
    tokens: float  # computed in a step, on average: prompts that were not cached, and output
    pages: float  # share of KV memory, at most
    memory: float  # bytes of the processes of models, at most
    gpu: float  # share of the time in which a kernel ran, on average over GPUs
    gpu_memory: float  # bytes of all GPUs, at most

    @classmethod
    def of(cls, window: Window) -> Use:
        cores = [_mean(values) for values in window.select("host_cpu_percent").values()]
        steps = window.delta("gapless_steps_total")
        computed = (
            window.delta("gapless_prompt_tokens_total")
            - window.delta("gapless_prefix_hit_tokens_total")
            + window.delta("gapless_output_tokens_total")
        )
        total = window.latest("gapless_pages_total")
        return cls(
            busy=window.rate("gapless_step_seconds_sum"),
            cores=sum(cores) / len(cores) / 100 if cores else NEVER,
            running=_mean(_sum(window, "gapless_running")),
            tokens=computed / steps if steps > 0 else NEVER,
            pages=_peak(_sum(window, "gapless_pages_used")) / total if total > 0 else NEVER,
            memory=_peak(_sum(window, "host_process_rss_bytes", process="model")),
            gpu=_mean(np.concatenate([*window.select("nvml_utilization_percent").values(), [NEVER]])) / 100,
            gpu_memory=_peak(_sum(window, "nvml_memory_used_bytes")),
        )


def _sum(window: Window, name: str, **labels: str) -> Values:
    """The series of a name added up, at each moment those that are there."""
    found = list(window.select(name, **labels).values())
    if not found:
        return np.array([NEVER])
    stacked = np.stack(found)
    return np.where(np.isnan(stacked).all(axis=0), NEVER, np.nansum(stacked, axis=0))


def _mean(values: Values) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else NEVER


def _peak(values: Values) -> float:
    there = values[~np.isnan(values)]
    return float(there.max()) if len(there) else NEVER
