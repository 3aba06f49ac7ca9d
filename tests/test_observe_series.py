"""Pages in Prometheus' text format, of all kinds, read as what stands there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observe.series import PageError, Series, named, page, parse

PAGE = r"""
# HELP nv_inference_request_success Number of successful requests, all "batch" sizes {and more}
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="chat",version="1"} 41
nv_inference_request_success{version="1",model="embed",} 7 1395066363000
# TYPE gapless_steps_total counter
gapless_steps_total{model="chat"} 1.5e+03
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-0"} 0.25
# TYPE gapless_itl_seconds histogram
gapless_itl_seconds_bucket{model="chat",tier="api",le="0.002"} 3
gapless_itl_seconds_bucket{model="chat",tier="api",le="+Inf"} 5
gapless_itl_seconds_sum{model="chat",tier="api"} 0.034
gapless_itl_seconds_count{model="chat",tier="api"} 5
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us{model="chat",quantile="0.99"} NaN
nv_inference_request_summary_us_count{model="chat"} 0
untyped_one -Inf
odd{path="C:\\DIR\\n",said="a \"b\"\nc",empty=""} 1
"""


def test_a_page_of_all_kinds() -> None:
    found = dict(page(PAGE))
    chat = (("model", "chat"),)
    api = (*chat, ("tier", "api"))
    summary = Series("nv_inference_request_summary_us", (*chat, ("quantile", "0.99")))
    assert math.isnan(found.pop(summary))
    assert found == {
        Series("nv_inference_request_success", (*chat, ("version", "1"))): 41,
        Series("nv_inference_request_success", (("model", "embed"), ("version", "1"))): 7,
        Series("gapless_steps_total", chat): 1500,
        Series("nv_gpu_utilization", (("gpu_uuid", "GPU-0"),)): 0.25,
        Series("gapless_itl_seconds_bucket", (("le", "0.002"), *api)): 3,
        Series("gapless_itl_seconds_bucket", (("le", "+Inf"), *api)): 5,
        Series("gapless_itl_seconds_sum", api): 0.034,
        Series("gapless_itl_seconds_count", api): 5,
        Series("nv_inference_request_summary_us_count", chat): 0,
        Series("untyped_one"): -math.inf,
        Series("odd", (("empty", ""), ("path", r"C:\DIR" + r"\n"), ("said", 'a "b"\nc'))): 1,
    }


@pytest.mark.parametrize("text", ["<html>", "a x", 'a{b="c"}', 'a{b="c} 3', "a{b 1", "a " + "9" * 400, '{x="",\t=a} 1'])
def test_what_is_no_page_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(PageError, match=r"^is no page of metrics: .+$") as told:
        list(page(f"fine 1\n{text}\n"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ['{"nv_é x"} 2', 'nv_a{"x y"="1"} 1', 'nv_a{b="\ud800"} 1'])
def test_what_cannot_be_written_as_it_is_read_is_not_plain(text: str) -> None:
    [(odd, _), (fine, _)] = page(f'{text}\nnv:a{{b_1="é x"}} 1\n')
    assert (odd.plain, fine.plain) == (False, True)


labels = st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(max_size=20), max_size=4)


@settings(max_examples=50)
@given(labels)
def test_the_text_of_a_series_reads_back_as_it(labels: dict[str, str]) -> None:
    series = Series("name", tuple(sorted(labels.items())))
    assert parse(str(series)) == series
    assert parse(named("name", **labels)) == series
