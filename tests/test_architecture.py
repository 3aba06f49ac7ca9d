"""Import layers between rooms and the purity of the decode core, read from the syntax trees of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CORE_NAMES = (
    "types plan config page_pool radix kv_cache sequence queues accounts load step_time policy draft gaps roster"
    " scheduler engine"
)
CORE = {f"decode.{name}" for name in CORE_NAMES.split()}
# Parts of the standard library that bring time, chance, threads or the outside world into the core.
IMPURE_NAMES = """
_thread asyncio concurrent datetime importlib io logging multiprocessing os pathlib queue random sched secrets select
signal socket subprocess tempfile threading time uuid
"""
IMPURE = set(IMPURE_NAMES.split())
# The SLA file as read, the units it is written in, who arrives when by it, and how a percentile is taken.
SPEC = {f"config_gen.sla.{name}" for name in ("spec", "quantity", "arrivals", "timing")} | {"config_gen.percentiles"}
# The production scheduler on a virtual clock, and what a step costs there: pure, too.
SIMULATION_NAMES = "clock config driver engine options outcome plan simulator types warm_up"
SIMULATION = {f"decode.{name}" for name in SIMULATION_NAMES.split()} | {
    f"decode.executors.{name}" for name in ("cost_model", "gpu_cost", "gpu_table", "model_config")
}
ROOMS = ("builders", "config_gen", "decode", "engines", "gapless", "loadtest", "observe")
# What a room may import of other rooms: whole rooms by name, single modules by their dotted name.
MAY_IMPORT: dict[str, set[str]] = {
    "builders": SPEC | {"config_gen.profile", "engines"},  # a builder measures what will run
    "config_gen": CORE | SIMULATION,
    "decode": set(),
    "engines": set(),
    "gapless": {"builders", "config_gen", "decode", "engines", "loadtest", "observe"},
    "loadtest": SPEC,
    "observe": SPEC,
}
# What packages of config_gen may import of each other; the modules beside them hold words that all use.
INSIDE: dict[str, set[str]] = {
    "sla": set(),
    "simulation": {"sla"},
    "planning": {"sla", "simulation", "triton"},
    "triton": set(),
    "lint": {"triton"},
}
EXTRA = {
    ("builders.profiling", "loadtest.pictures"),  # what preparing a picture costs is measured with those that are sent
    ("config_gen.planning.unary_search", "engines.grouping"),  # how a batch is computed, by the very code that does it
    ("decode.triton_metrics", "observe.metrics"),  # the declarations of the metrics that it sets
    ("engines.triton_io", "decode.supervision"),  # one line to the launcher for all models
    ("engines.served.model", "decode.stub"),  # one check of the stub for all models
    ("engines.triton_io", "decode.stub"),
}
FOREIGN = {  # libraries a room must not know
    "builders": {"tritonclient", "locust"},
    "config_gen": {"torch", "socket", "tritonclient", "locust", "http", "urllib", "requests"},
    "decode": {"yaml", "locust", "http", "urllib", "requests", "tritonclient"},
    "engines": {"yaml", "locust", "tritonclient"},
    "loadtest": {"torch"},
    "observe": {"torch", "locust"},
}
PB_UTILS = "triton_python_backend_utils"
SERVED = {"decode.served.model", "engines.served.model", "loadtest.served.model"}  # what Triton loads
EDGES = SERVED | {"decode.triton_io", "decode.triton_metrics", "decode.stub", "engines.triton_io"}
# Inside decode, imports point downward: a module may not import one of a higher layer.
ABOVE_EXECUTORS = {
    "decode.scheduler",
    "decode.engine",
    "decode.driver",
    "decode.service",
    "decode.triton_io",
    "decode.triton_metrics",
}


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, wherever in the file it does so."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = package[: len(package) - node.level + 1] if node.level else []
            base = [*near, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                inner = root.joinpath(*base, alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                yield node.lineno, ".".join([*base, alias.name] if is_module else base)


def breach(module: str, name: str) -> str | None:
    """Why `module` may not import `name`, or None."""
    room, top = module.split(".")[0], name.split(".")[0]
    if top == PB_UTILS:
        return None if module in EDGES else f"only {', '.join(sorted(EDGES))} know Triton's Python backend"
    if top in ROOMS and top != room:
        known = MAY_IMPORT[room]
        allowed = name in known or top in known or (module, name) in EXTRA
        return None if allowed else f"{room} may import of other rooms only {sorted(known) or 'nothing'}"
    if room == top == "config_gen" and (why := breach_inside(*(f"{one}.".split(".")[1] for one in (module, name)))):
        return why
    if top in FOREIGN.get(room, ()):
        return f"{room} must not know {top}"
    if module in CORE:
        if top == room:
            return None if name in CORE else "the core imports itself only"
        if top not in sys.stdlib_module_names or top in IMPURE:
            return "the core is pure: standard library only, and no clock, chance, threads or outside world"
    if name == "decode.triton_io" and module not in SERVED:
        return "decode.triton_io is the edge: nothing inside imports it"
    if name == "decode.triton_metrics" and module != "decode.triton_io":
        return "decode.triton_metrics is the edge's: nothing else imports it"
    if (module.startswith("decode.executors") or module == "decode.sampler") and name in ABOVE_EXECUTORS:
        return "executors know plans, not who makes them"
    return None


def breach_inside(package: str, other: str) -> str | None:
    """Why this part of config_gen may not import the other, or None."""
    if other == package or other not in INSIDE:
        return None
    known = INSIDE.get(package, set())
    return None if other in known else f"config_gen.{package} may import of its room only {sorted(known) or 'words'}"


def violations(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: imports {name}: {why}"
        for module, path in modules(root)
        for line, name in imports(module, path, root)
        if (why := breach(module, name))
    ]


def test_imports_point_downward_and_the_core_is_pure() -> None:
    assert violations(ROOT) == []


def test_the_core_is_there() -> None:
    assert {module for module, _ in modules(ROOT)} >= CORE


@pytest.mark.parametrize(
    ("where", "source", "why"),
    [
        ("decode/scheduler.py", "import torch", "core is pure"),
        ("decode/engine.py", "from time import monotonic_ns", "core is pure"),
        ("decode/policy.py", "def order():\n    import random", "core is pure"),
        ("decode/kv_cache.py", "import os.path", "core is pure"),
        ("decode/radix.py", "from decode.sampler import Sampler", "core imports itself"),
        ("decode/radix.py", "from . import sampler", "core imports itself"),
        ("decode/types.py", "from .executors.base import Executor", "core imports itself"),
        ("decode/driver.py", "import triton_python_backend_utils as pb_utils", "Python backend"),
        ("gapless/cli.py", "import triton_python_backend_utils", "Python backend"),
        ("decode/service.py", "from config_gen.sla.spec import Spec", "of other rooms"),
        ("decode/service.py", "from observe.metrics import TTFT", "of other rooms"),
        ("decode/triton_io.py", "import observe.alerts", "of other rooms"),
        ("decode/service.py", "import gapless", "of other rooms"),
        ("decode/service.py", "import yaml", "must not know yaml"),
        ("builders/llm.py", "from loadtest import run", "of other rooms"),
        ("loadtest/run.py", "from config_gen.plan import Plan", "of other rooms"),
        ("observe/rules.py", "import decode.engine", "of other rooms"),
        ("config_gen/simulate.py", "from decode.service import Service", "of other rooms"),
        ("config_gen/sla/spec.py", "import torch", "must not know torch"),
        ("config_gen/simulation/joint.py", "from config_gen.planning import plans", "of its room only ['sla']"),
        ("config_gen/plan.py", "from config_gen.sla.spec import Spec", "of its room only words"),
        ("decode/served/model.py", "from gapless import cli", "of other rooms"),
        ("decode/executors/torch_paged.py", "from decode.engine import Engine", "not who makes them"),
        ("decode/service.py", "from decode import triton_io", "is the edge"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, where: str, source: str, why: str) -> None:
    for module in ("decode/sampler.py", "decode/triton_io.py", "decode/executors/base.py", "config_gen/sla/spec.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("")
    planted = tmp_path / where
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(source + "\n")
    found = violations(tmp_path)
    assert len(found) == 1 and found[0].startswith(f"{where}:") and why in found[0], found


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("decode/engine.py", "from collections import deque\nfrom decode import policy\nfrom .types import Request"),
        ("decode/triton_metrics.py", "import triton_python_backend_utils\nfrom observe.metrics import TTFT"),
        ("decode/service.py", "import threading\nimport torch"),
        ("loadtest/run.py", "from config_gen.sla.spec import Spec\nimport locust"),
        ("config_gen/simulate.py", "from decode.engine import Engine"),
        ("gapless/commands/serve.py", "import builders.llm\nfrom decode.service import Service"),
        ("decode/served/model.py", "import triton_python_backend_utils\nfrom decode import triton_io"),
    ],
)
def test_what_the_layers_allow_is_not_reported(tmp_path: Path, where: str, source: str) -> None:
    for module in ("decode/policy.py", "decode/types.py", "decode/triton_io.py", where):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("")
    (tmp_path / where).write_text(source + "\n")
    assert violations(tmp_path) == []
