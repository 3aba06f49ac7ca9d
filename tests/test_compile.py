"""Plans by TensorRT: what a version lacks is not asked for, what cannot be compiled is one line.

TensorRT-RTX compiles here without a GPU; `tensorrt` itself builds on a GPU only and is not installed.
"""

from __future__ import annotations

import enum
import importlib.metadata
import re
import types
from typing import Any

import builder_models
import onnx
import pytest
from onnx import TensorProto, helper

from builders import compile as under_test
from builders import runtimes
from builders.compile import Compiled, Options, Profile, _configure, _flags, compile_plan
from builders.errors import BuildError
from builders.runtimes import choose_runtime, length_buckets, optimization_profiles
from config_gen.sla.spec import Engine
from engines.stamp import TensorSpec

INPUTS = [TensorSpec("x", "float32", (-1, 4))]
PROFILES = [Profile((1, 4, 8))]


def compiled(model: onnx.ModelProto, *capabilities: str, **more: Any) -> Compiled:
    options = Options(compute_capability=capabilities, **more)
    return compile_plan("tensorrt_rtx", model.SerializeToString(), INPUTS, PROFILES, options)


def types_in(plan: bytes) -> dict[str, str]:
    """Type by name of the network's own tensors, from the text inside a plan."""
    found = re.findall(rb'name="(\w+)\.\d+"[^}]*region="" [^\n]*type=(\w+) }', plan)
    return {name.decode(): kind.decode() for name, kind in found}


@pytest.mark.parametrize("capabilities", [("8.0",), ("8.9",), ("8.0", "8.9")])
def test_a_plan_is_made_for_gpus_that_are_not_here(capabilities: tuple[str, ...]) -> None:
    made = compiled(builder_models.linear(), *capabilities)
    assert made.plan[:4] == b"vtrt" and made.compute_capabilities == capabilities
    assert (made.inputs, made.outputs) == (("x",), ("y",))
    assert made.version == importlib.metadata.version("tensorrt-rtx-cu13")
    assert types_in(made.plan) == {"x": "float", "y": "float"}


def test_plans_for_one_gpu_and_for_another_differ() -> None:
    assert compiled(builder_models.linear(), "8.0").plan != compiled(builder_models.linear(), "8.9").plan


def test_the_graphs_own_types_decide() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "cast", to=TensorProto.FLOAT16),
        helper.make_node("Tanh", ["h"], ["y"], "tanh"),
    ]
    model = builder_models.graph(nodes, {}, outputs=[("y", TensorProto.FLOAT16, ["n", 4])])
    assert types_in(compiled(model, "8.9").plan) == {"x": "float", "y": "half"}


def refused(*arguments: Any) -> str:
    with pytest.raises(BuildError) as caught:
        compile_plan(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("capability", ["9.0", "1.0", "12.9"])
def test_a_gpu_that_is_unknown_is_refused_with_those_that_are(capability: str) -> None:
    told = refused(
        "tensorrt_rtx", builder_models.linear().SerializeToString(), INPUTS, PROFILES, Options((capability,))
    )
    assert told.startswith(f"engine.compute_capability: {capability} is not allowed") and "8.0, 8.6, 8.9" in told


def test_without_a_gpu_one_must_be_named() -> None:
    told = refused("tensorrt_rtx", builder_models.linear().SerializeToString(), INPUTS, PROFILES, Options())
    assert told == "engine.compute_capability: is missing, and no GPU is here; give some, such as ['8.9']"


@pytest.mark.parametrize("model", [b"junk", builder_models.linear().SerializeToString()[:90]])
def test_what_is_no_onnx_is_refused(model: bytes) -> None:
    told = refused("tensorrt_rtx", model, INPUTS, PROFILES, Options(("8.9",)))
    assert told.startswith("tensorrt_rtx cannot read the graph: ")


def test_an_operator_that_tensorrt_lacks_is_named() -> None:
    nodes = [helper.make_node("Det", ["x"], ["y"], "det")]
    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 4, 4])], [("y", TensorProto.FLOAT, ["n"])]
    model = builder_models.graph(nodes, {}, inputs=inputs, outputs=outputs)
    told = refused("tensorrt_rtx", model.SerializeToString(), INPUTS, PROFILES, Options(("8.9",)))
    assert told.startswith("tensorrt_rtx cannot") and "Det" in told


def test_a_flavour_that_is_not_installed_is_named() -> None:
    assert refused("tensorrt", b"", INPUTS, PROFILES, Options()).startswith("engine.runtime: tensorrt is not installed")


def test_a_dimension_that_no_profile_knows_is_refused() -> None:
    told = refused(
        "tensorrt_rtx",
        builder_models.linear().SerializeToString(),
        [TensorSpec("x", "float32", (-1, -1))],
        PROFILES,
        Options(("8.9",)),
    )
    assert told.startswith("x: [-1, -1]; TensorRT needs to know what varies")


def test_profiles_give_every_input_its_shapes() -> None:
    text = Profile((1, 8, 32), (1, 64, 128))
    assert text.shapes(TensorSpec("ids", "int64", (-1, -1))) == ((1, 1), (8, 64), (32, 128))
    assert Profile((1, 8, 32)).shapes(TensorSpec("x", "float32", (-1, 3, 9))) == ((1, 3, 9), (8, 3, 9), (32, 3, 9))


@pytest.mark.parametrize(("batch", "longest"), [(1, 0), (32, 0), (32, 256), (4, 16), (64, 300), (8, 1)])
def test_profiles_together_hold_every_shape_that_is_padded_to(batch: int, longest: int) -> None:
    profiles = optimization_profiles(batch, longest)
    for profile in profiles:
        for least, best, most in (profile.batch, *((profile.length,) if profile.length else ())):
            assert 1 <= least <= best <= most
    for length in length_buckets(longest) if longest else ():
        assert any(p.length and p.length[0] <= length <= p.length[2] for p in profiles)
    assert profiles[-1].batch == (1, min(8, batch), batch)


@pytest.mark.parametrize(
    ("longest", "buckets"), [(256, (16, 32, 64, 128, 256)), (300, (16, 32, 64, 128, 256, 300)), (16, (16,)), (5, (5,))]
)
def test_lengths_are_padded_to_powers_of_two_and_the_longest(longest: int, buckets: tuple[int, ...]) -> None:
    assert length_buckets(longest) == buckets


# Attributes, not versions


class Ten(enum.IntEnum):
    """Flags that a version may have."""

    FP16, TF32, VERSION_COMPATIBLE, INT8 = range(4)


class Eleven(enum.IntEnum):
    TF32, VERSION_COMPATIBLE = range(2)


class Bare(enum.IntEnum):
    DEBUG = 0


class Config:
    def __init__(self) -> None:
        self.flags: dict[Any, bool] = {}
        self.limits: dict[Any, int] = {}

    def set_flag(self, flag: Any) -> None:
        self.flags[flag] = True

    def clear_flag(self, flag: Any) -> None:
        self.flags[flag] = False

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self.limits[pool] = size


def flavour(flags: Any) -> Any:
    pools, levels = types.SimpleNamespace(WORKSPACE="workspace"), types.SimpleNamespace(AMPERE_PLUS="ampere+")
    return types.SimpleNamespace(BuilderFlag=flags, MemoryPoolType=pools, HardwareCompatibilityLevel=levels)


def test_only_flags_that_there_are_become_bits() -> None:
    kinds = enum.IntEnum("kinds", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1})
    assert _flags(kinds, ("STRONGLY_TYPED",)) == 2
    assert _flags(kinds, ("STRONGLY_TYPED", "EXPLICIT_BATCH", "GONE")) == 3
    assert _flags(Bare, ("STRONGLY_TYPED",)) == 0


@pytest.mark.parametrize(("kind", "on"), [(Ten, True), (Ten, False), (Eleven, True), (Eleven, False), (Bare, False)])
def test_only_flags_that_a_version_has_are_touched(kind: Any, on: bool) -> None:
    config = Config()
    _configure(flavour(kind), config, Options(tf32=on, version_compatible=on))
    named = {flag.name: value for flag, value in config.flags.items()}
    assert named == {name: on for name in ("TF32", "VERSION_COMPATIBLE") if hasattr(kind, name)}
    assert config.limits == {} and not hasattr(config, "hardware_compatibility_level")


@pytest.mark.parametrize("wanted", [{"tf32": True}, {"version_compatible": True}])
def test_a_flag_that_a_version_lacks_is_refused_when_it_is_wanted(wanted: dict[str, bool]) -> None:
    [name] = wanted
    with pytest.raises(BuildError, match=rf"^engine\.{name}: this version of TensorRT does not have it"):
        _configure(flavour(Bare), Config(), Options(**wanted))


def test_memory_and_hardware_are_asked_for_when_wanted() -> None:
    config: Any = Config()
    _configure(flavour(Eleven), config, Options(workspace=2**30, hardware_compatible=True))
    assert config.limits == {"workspace": 2**30} and config.hardware_compatibility_level == "ampere+"


# Which runtime


@pytest.mark.parametrize(
    ("here", "installed", "chosen"),
    [
        (None, {"tensorrt", "tensorrt_rtx"}, "onnxruntime"),
        ("8.9", {"tensorrt", "tensorrt_rtx"}, "tensorrt"),
        ("8.9", {"tensorrt_rtx"}, "tensorrt_rtx"),
        ("9.0", {"tensorrt_rtx"}, "onnxruntime"),  # it knows no such GPU
        ("8.9", set(), "onnxruntime"),
    ],
)
def test_the_runtime_is_what_builds_for_the_gpu_that_is_here(
    monkeypatch: pytest.MonkeyPatch, here: str | None, installed: set[str], chosen: str
) -> None:
    monkeypatch.setattr(runtimes, "compute_capability", lambda: here)
    monkeypatch.setattr(under_test, "available", installed.__contains__)
    assert choose_runtime(Engine()) == chosen
    assert choose_runtime(Engine(runtime="tensorrt_rtx")) == "tensorrt_rtx"


@pytest.mark.parametrize(
    ("name", "here", "wanted", "told"),
    [
        ("tensorrt", None, (), "tensorrt builds on the GPU it is for, and none is here"),
        ("tensorrt", "9.0", ("8.0",), "8.0; allowed: that of the GPU here, 9.0"),
        ("tensorrt", "9.0", ("9.0",), ("9.0",)),
        ("tensorrt", "9.0", (), ("9.0",)),
        ("tensorrt_rtx", "8.9", (), ("8.9",)),
        ("tensorrt_rtx", None, ("8.0", "8.9"), ("8.0", "8.9")),
    ],
)
def test_what_a_plan_is_for(
    monkeypatch: pytest.MonkeyPatch, name: str, here: str | None, wanted: tuple[str, ...], told: Any
) -> None:
    monkeypatch.setattr(under_test, "compute_capability", lambda: here)
    if isinstance(told, tuple):
        assert under_test.target(name, wanted) == told
    else:
        with pytest.raises(BuildError, match=re.escape(told)):
            under_test.target(name, wanted)
