"""What a hostile user found: code that ends the program, names that lead elsewhere, values that mean nothing."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from builder_models import build, chain, onnx_model, saved, search, small_int8, weights, whole
from engine_models import array_engine, text_engine
from onnx import TensorProto, helper
from pydantic import ValidationError

import builders.int8
import engines.stamp
from builders.errors import BuildError
from builders.search import fewest
from builders.sources import exported
from config_gen.sla.spec import Accuracy
from engines.errors import EngineError, ItemError
from engines.grouping import fit, groups
from engines.session import open_session
from engines.stamp import FILE, Stamp
from engines.texts import MOST
from gapless.commands.build import build_onnx
from gapless.errors import UsageError
from gapless.model_files import MODEL, add_model, is_free


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))


def refused(fields: dict[str, Any], out: Path) -> str:
    with pytest.raises(BuildError) as caught:
        build(fields, out)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("where", ["import", "factory"])
def test_users_code_that_ends_the_program_is_told_of(tmp_path: Path, where: str) -> None:
    """A script without a main guard ended the build with status 0 and nothing built."""
    body = {"import": "raise SystemExit(0)", "factory": "def f(): raise SystemExit(0)"}[where]
    (tmp_path / f"ends_{where}.py").write_text(f"{body}\n")
    assert "ends the program (sys.exit)" in refused({"source": f"torch:ends_{where}:f"}, tmp_path / "out")


def test_a_signal_during_users_code_stays_a_signal(tmp_path: Path) -> None:
    (tmp_path / "signalled.py").write_text("def f(): raise SystemExit(143)\n")
    with pytest.raises(SystemExit) as ended:
        build({"source": "torch:signalled:f"}, tmp_path / "out")
    assert ended.value.code == 143


def test_weights_that_a_factory_loads_are_part_of_its_source(tmp_path: Path) -> None:
    """With other weights in the file that it loads, the engine counted as up to date."""
    (tmp_path / "loads.py").write_text(
        "import torch\n"
        "def f():\n"
        "    made = torch.nn.Linear(4, 3)\n"
        f"    made.load_state_dict(torch.load({str(tmp_path / 'w.pt')!r}))\n"
        "    return made, torch.zeros(2, 4)\n"
    )
    fields = {"source": "torch:loads:f"}
    torch.save(torch.nn.Linear(4, 3).state_dict(), tmp_path / "w.pt")
    build(fields, tmp_path / "out")
    assert build(fields, tmp_path / "out").up_to_date
    torch.save(torch.nn.Linear(4, 3).state_dict(), tmp_path / "w.pt")
    assert not build(fields, tmp_path / "out").up_to_date


def test_a_stamp_cannot_make_a_build_delete_other_files(tmp_path: Path) -> None:
    fields = small_int8(tmp_path)
    build(fields, tmp_path / "out")
    other = tmp_path / "precious"
    other.write_text("mine")
    path = tmp_path / "out" / FILE
    stamp = json.loads(path.read_text())
    stamp["files"][f"../{other.name}"] = "0"
    path.write_text(json.dumps(stamp))
    assert not build(fields, tmp_path / "out").up_to_date
    assert other.read_text() == "mine"
    whole(tmp_path / "out")


def test_a_folder_of_another_kind_of_model_is_left_alone(tmp_path: Path) -> None:
    version = tmp_path / "chat" / "1"
    version.mkdir(parents=True)
    (version / MODEL).write_text("from decode import stub, triton_io\n")
    model = onnx_model(source=f"onnx:{saved(chain(weights(4, 4)), tmp_path / 'm.onnx')}")
    with pytest.raises(UsageError, match="another kind of model"):
        build_onnx("chat", model, version, tmp_path / "sla.yaml")
    assert [path.name for path in version.iterdir()] == [MODEL]


def test_each_kind_brings_its_model_and_knows_its_own(tmp_path: Path) -> None:
    for kind, other in (("llm", "onnx"), ("onnx", "llm")):
        version = tmp_path / kind / "1"
        version.mkdir(parents=True)
        assert is_free(kind, version) and is_free(other, version)
        add_model(kind, version)
        assert is_free(kind, version) and not is_free(other, version)
        add_model(kind, version)
        assert [path.name for path in version.parent.rglob("*") if path.is_file()] == [MODEL]


def test_a_text_model_must_take_all_lengths_and_answer_in_one_size(tmp_path: Path) -> None:
    """An answer as long as its text had the length of whatever was computed beside it."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text((text_engine(tmp_path / "t") / "tokenizer.json").read_text())
    told = {}
    for name, length, out in (("fixed", 16, [4]), ("long", "l", ["l", 4])):
        gather = helper.make_node("Gather", ["table", "input_ids"], ["each"])
        last = ("Identity", ["each"]) if name == "long" else ("ReduceMean", ["each", "axes"])
        end = helper.make_node(*last, ["y"], **({} if name == "long" else {"keepdims": 0}))
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", length])
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", *out])
        constants = {"table": weights(64, 4), "axes": np.array([1], np.int64)}
        held = [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()]
        model = helper.make_model(
            helper.make_graph([gather, end], "g", [ids], [result], held),
            opset_imports=[helper.make_opsetid("", 20)],
            ir_version=8,
        )
        source = saved(model, tmp_path / f"{name}.onnx")
        told[name] = refused({"source": f"onnx:{source}", "tokenizer": str(tokenizer)}, tmp_path / name)
    assert "input_ids: is [-1, 16]; allowed for texts: [-1, -1], any length" in told["fixed"]
    assert "y: is [-1, -1, 4]; allowed for texts: outputs of one size" in told["long"]


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(chain(weights(4, 4)), tmp_path / "m.onnx")
    checked = builders.sources.check_file

    def changes(what: Path) -> Any:
        saved(chain(weights(4, 4, seed=1)), path)
        return checked(what)

    monkeypatch.setattr("builders.sources.check_file", changes)
    with pytest.raises(BuildError, match="changed while it was read; build again"):
        exported(onnx_model(source=f"onnx:{path}"), lambda what, done, total: None)


def test_a_text_beyond_all_bounds_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    from engines.runner import Runner

    runner = Runner(text_engine(tmp_path))
    refusal, answer = runner.run(["dog " * (MOST // 4 + 1), "dog"])
    assert isinstance(refusal, ItemError) and f"at most {MOST:,}" in str(refusal)
    assert isinstance(answer, dict)


@pytest.mark.parametrize(
    ("field", "value"),
    [("runtime", "x"), ("precision", "q8"), ("max_batch_size", 0), ("max_batch_size", 10**8), ("file", "/etc/passwd")],
)
def test_a_stamp_that_was_edited_is_no_stamp(tmp_path: Path, field: str, value: Any) -> None:
    folder = array_engine(tmp_path)
    stamp = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(stamp | {field: value}))
    with pytest.raises(EngineError) as caught:
        open_session(Stamp.read(folder), folder)
    assert field in str(caught.value) or str(value) in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"image": {"size": 32, "mean": [float("nan"), 0, 0]}},
        {"image": {"size": 32, "std": [1e-300, 1, 1]}},
        {"accuracy": {"metric": "cosine", "min": 2}},
        {"accuracy": {"metric": "top1", "min": 1.5}},
        {"accuracy": {"metric": "cosine", "min": 0.9, "worst": -1.5}},
        {"tokenizer": ""},
        {"evaluation": "data.npz"},
        {"engine": {"workspace": "99999999TiB"}},
    ],
)
def test_values_that_mean_nothing_are_no_sla(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        onnx_model(source="onnx:m.onnx", **fields)


# Searches and groups against brute force


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 9), (3, 9), (2, 2), (1, 40)])
def test_the_fewest_that_pass_are_found_with_few_questions(least: int, most: int) -> None:
    for first in range(least, most + 2):
        asked: list[int] = []

        def passes(kept: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(kept)
            return kept >= first

        assert fewest(passes, least, most) == (first if first <= most else None)
        assert all(least <= kept <= most for kept in asked) and len(set(asked)) <= 2 * (most - least).bit_length() + 2


@pytest.mark.parametrize("seed", range(20))
def test_texts_are_grouped_as_cheaply_as_can_be(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = [int(n) for n in random.integers(1, 60, random.integers(1, 8))]
    fixed, per_token = random.uniform(0, 30), random.uniform(0.1, 1)

    def cost(rows: int, longest: int) -> float:
        return float(fixed + per_token * rows * longest)

    made = groups(lengths, cost)
    assert sorted(at for group in made for at in group) == list(range(len(lengths)))
    best = min(total(part, lengths, cost) for part in partitions(list(range(len(lengths)))))
    assert total(made, lengths, cost) == pytest.approx(best)


def total(parts: Any, lengths: list[int], cost: Any) -> float:
    return sum(cost(len(part), max(lengths[at] for at in part)) for part in parts)


def partitions(items: list[int]) -> Any:
    if not items:
        yield []
        return
    head, *rest = items
    for part in partitions(rest):
        yield [[head], *part]
        for at in range(len(part)):
            yield [*part[:at], [head, *part[at]], *part[at + 1 :]]


def test_the_cost_of_a_run_is_fitted() -> None:
    exact = [(n, 2.0 + 0.05 * n) for n in (10, 80, 640)]
    assert fit(exact) == pytest.approx((2.0, 0.05))
    assert fit([(10, 5.0)]) == (0.0, 0.5)
    fixed, per_token = fit([(10, 0.1), (100, 4.0)])  # a line through these begins below zero
    assert fixed == 0 and all(a <= b for a, b in pairwise((0.01, per_token, 0.04)))


# Processors


def test_without_vnni_weights_have_seven_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uint8 times int8 saturates there when two large products are added in 16 bits."""
    monkeypatch.setattr(builders.int8, "adds_int8_exactly", lambda: False)
    data = [{"x": weights(8, 16, seed=seed)} for seed in range(6)]
    found, _ = search(chain(weights(16, 16)), Accuracy(metric="cosine", min=0.9), data, data)
    assert found.model is not None
    held = [onnx.numpy_helper.to_array(i) for i in found.model.graph.initializer if i.data_type == TensorProto.INT8]
    quantized = [array for array in held if array.ndim == 2]
    assert quantized and max(int(np.abs(array.astype(int)).max()) for array in quantized) <= 64


def test_int8_judged_with_vnni_is_refused_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = array_engine(tmp_path, precision="int8")
    open_session(Stamp.read(folder), folder)
    monkeypatch.setattr(engines.stamp, "adds_int8_exactly", lambda: False)
    with pytest.raises(EngineError, match=r"\(no VNNI\) does not; rebuild: "):
        open_session(Stamp.read(folder), folder)
    assert os.listdir(folder)
