"""Reads the measured operators in an unpacked wheel of aiconfigurator-core, and says which of them are held out.

Latencies become µs by what was measured, as tuples of integers. Must not know how tables are made.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

Row = dict[str, Any]
Rows = dict[tuple[int, ...], float]
NARROWEST = 128  # inputs and outputs of a linear layer: models that are served have none narrower
LARGE = 2**29  # bytes; no cache of these GPUs holds more than a quarter of it
HELD_OUT = 8  # one in so many shapes (linear) or rows (attention)
CHECKED = 4000  # most held-out rows that an error is taken over, chosen by the same hash
INT8_FROM = {"a100_sxm": ("trtllm", "sq")}  # 8-bit weights and activations; the others have fp8
FLOPS = {"bf16": "bfloat16", "int8": "int8", "fp8": "fp8"}  # our names of peak rates, and the package's


def package(wheel: Path) -> tuple[Path, dict[str, str]]:
    """The folder of measurements in an unpacked wheel, and what to say of it."""
    meta = next(wheel.glob("aiconfigurator_core-*.dist-info"))
    version = meta.name.removesuffix(".dist-info").split("-")[1]
    source = {"package": "aiconfigurator-core", "version": version, "licence": "Apache-2.0"}
    return wheel / "aiconfigurator_core" / "systems", source


def drawn(*key: object) -> int:
    """A fixed number from 0 to 2**32 for what was measured."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")


def held_out(*key: object) -> bool:
    return drawn(*key) % HELD_OUT == 0


def some(keys: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(keys, key=lambda key: drawn("checked", *key))[:CHECKED]


def newest(folder: Path, framework: str, name: str) -> Path:
    """The file of the framework's latest version that has it."""
    found = folder.glob(f"{framework}/*/{name}")
    return max(found, key=lambda path: [int("0" + "".join(filter(str.isdigit, w))) for w in path.parts[-2].split(".")])


def origin(path: Path) -> dict[str, str]:
    return {"framework": path.parts[-3], "version": path.parts[-2]}


def means(rows: Iterable[tuple[tuple[int, ...], float]]) -> Rows:
    """µs by what was measured; several measurements of the same are averaged."""
    found: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for key, ms in rows:
        found[key].append(ms * 1000)
    return {key: float(np.mean(values)) for key, values in found.items()}


def system(folder: Path, gpu: str) -> Row:
    """Sizes and small overheads of a GPU as the package states them."""
    raw = yaml.safe_load((folder / f"{gpu}.yaml").read_text(encoding="utf-8"))
    chip = raw["gpu"]
    return {
        "memory_bytes": chip["mem_capacity"],
        "reserved_bytes": raw["misc"]["other_mem"],
        "bandwidth": chip["mem_bw"],
        "bandwidth_fraction": chip["mem_bw_empirical_scaling_factor"],
        "kernel_ns": round(chip["mem_empirical_constant_latency"] * 1e9),
        "flops": {name: chip[f"{key}_tc_flops"] for name, key in FLOPS.items() if f"{key}_tc_flops" in chip},
    }


def linear_sources(data: Path, gpu: str) -> dict[str, tuple[Path, str]]:
    file = newest(data / "gemm", "vllm", "gemm_perf.parquet")
    sources = {"bf16": (file, "bfloat16")}
    if "fp8" in set(pq.read_table(file, columns=["gemm_dtype"]).column(0).to_pylist()):
        sources["fp8"] = (file, "fp8")
    if gpu in INT8_FROM:
        framework, dtype = INT8_FROM[gpu]
        sources["int8"] = (newest(data / "gemm", framework, "gemm_perf.parquet"), dtype)
    return sources


def linear_rows(path: Path, dtype: str) -> Rows:
    rows = pq.read_table(path, columns=["gemm_dtype", "m", "n", "k", "latency"]).to_pylist()
    return means(((r["m"], r["n"], r["k"]), r["latency"]) for r in rows if keep(r, dtype))


def keep(row: Row, dtype: str) -> bool:
    return row["gemm_dtype"] == dtype and min(row["n"], row["k"]) >= NARROWEST


def attention_rows(path: Path, dim: int) -> Rows:
    """(heads, KV heads, sequences, length) → µs, without windows and with a 16-bit cache."""
    rows = [
        r
        for r in pq.read_table(path).to_pylist()
        if r["head_dim"] == dim and not r.get("window_size") and r["kv_cache_dtype"] == "bfloat16"
    ]
    return means(
        ((r["num_heads"], r["num_key_value_heads"], r["batch_size"], r["isl"] + r["step"]), r["latency"]) for r in rows
    )


def stream_fraction(rows: Rows, dim: int, bandwidth: float) -> float:
    """The largest part of the memory's bandwidth that decoding reached on keys and values far larger than any cache."""
    large = [key for key in rows if kv_bytes(key, dim) >= LARGE]
    return max(kv_bytes(key, dim) / bandwidth * 1e6 / rows[key] for key in large)


def kv_bytes(key: tuple[int, ...], dim: int) -> int:
    _, kv, sequences, length = key
    return sequences * length * kv * dim * 4


def from_memory(rows: Rows, dim: int, rate: float) -> Rows:
    """Decoding with keys and values out of memory (`rate` bytes per second).

    They were measured again and again on the same keys and values, which a large cache then holds; in a model every
    layer has its own, and the weights pass in between. So what was faster than memory can deliver is raised to that.
    """
    return {key: max(us, kv_bytes(key, dim) / rate * 1e6) for key, us in rows.items()}
