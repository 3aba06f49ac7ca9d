"""What a window says a served LLM took, against values worked out by hand."""

from __future__ import annotations

from math import isnan

import pytest

from observe import window
from observe.use import Use

SECOND = 10**9


def test_use_is_computed_from_what_was_sampled() -> None:
    first = {
        'gapless_step_seconds_sum{model="chat"}': 10.0,
        'gapless_steps_total{model="chat"}': 100.0,
        'gapless_prompt_tokens_total{model="chat"}': 1000.0,
        'gapless_prefix_hit_tokens_total{model="chat"}': 600.0,
        'gapless_output_tokens_total{model="chat"}': 50.0,
        'gapless_running{model="chat"}': 2.0,
        'gapless_pages_used{model="chat"}': 40.0,
        'gapless_pages_total{model="chat"}': 200.0,
        'host_cpu_percent{core="0"}': 100.0,
        'host_cpu_percent{core="1"}': 0.0,
        'host_process_rss_bytes{model="chat",pid="7",process="model"}': 100.0,
        'host_process_rss_bytes{pid="8",process="server"}': 900.0,
        'nvml_utilization_percent{gpu="0"}': 90.0,
        'nvml_utilization_percent{gpu="1"}': 10.0,
        'nvml_memory_used_bytes{gpu="0"}': 7.0,
        'nvml_memory_used_bytes{gpu="1"}': 5.0,
    }
    later = first | {
        'gapless_step_seconds_sum{model="chat"}': 13.0,
        'gapless_steps_total{model="chat"}': 120.0,
        'gapless_prompt_tokens_total{model="chat"}': 1400.0,
        'gapless_prefix_hit_tokens_total{model="chat"}': 900.0,
        'gapless_output_tokens_total{model="chat"}': 150.0,
        'gapless_running{model="chat"}': 6.0,
        'gapless_pages_used{model="chat"}': 10.0,
        'host_cpu_percent{core="1"}': 50.0,
        'host_process_rss_bytes{model="chat",pid="7",process="model"}': 130.0,
    }
    use = Use.of(window.of_samples([(0, first), (4 * SECOND, later)]))
    assert use.busy == pytest.approx(3 / 4)  # 3 s in steps within 4
    assert use.cores == pytest.approx((100 + 25) / 2 / 100)
    assert use.running == 4
    assert use.tokens == pytest.approx((400 - 300 + 100) / 20)  # prompts that were not cached, and output
    assert use.pages == pytest.approx(40 / 200)
    assert use.memory == 130  # not the server's
    assert use.gpu == pytest.approx(0.5) and use.gpu_memory == 12


def test_what_nobody_said_is_not_a_number() -> None:
    use = Use.of(window.of_samples([(0, {"other": 1.0}), (SECOND, {"other": 2.0})]))
    assert all(
        map(isnan, (use.busy, use.cores, use.running, use.tokens, use.pages, use.memory, use.gpu, use.gpu_memory))
    )
