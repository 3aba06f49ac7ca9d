"""Turns measured operators into the tables of decode/executors/gpus: one JSON file per GPU.

    pip download --no-deps aiconfigurator-core && unzip aiconfigurator_core-*.whl -d wheel
    python tools/fit_gpu.py wheel          # needs pyarrow, numpy and pyyaml; gapless itself does not

Rows of the measurements are held out (by a hash of what was measured) before a table is made, and stay out of it: the
error in each file is that of the shipped table, read by the shipped code, on rows that it does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from grids import coded, fill, pool
from measurements import (
    Row,
    Rows,
    attention_rows,
    from_memory,
    held_out,
    linear_rows,
    linear_sources,
    newest,
    origin,
    package,
    some,
    stream_fraction,
    system,
)

from decode.executors.gpu_cost import prefill_ns
from decode.executors.gpu_table import TABLES, GpuTable

Groups = dict[str, list[tuple[int, ...]]]
GPUS = {
    "a100_sxm": ["a100", "a100_80gb", "a100_sxm_80gb"],
    "h100_sxm": ["h100", "h100_80gb", "h100_sxm_80gb"],
    "h200_sxm": ["h200", "h200_141gb"],
    "l40s": ["l40s_48gb"],
    "b200_sxm": ["b200"],
    "b300_sxm": ["b300"],
    "gb200": [],
    "gb300": [],
    "rtx_pro_6000_server": ["rtx_pro_6000"],
}
# Tokens: those after a power of two begin a new tile and may cost twice as much; a GPU takes those that were measured.
M = [1, 2, 4, 8, 16, 32, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513, 768, 1024, 1025, 2048, 4096, 8192]
PROMPTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
LENGTHS = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
SEQUENCES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
CONTEXTS = [2, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
HEADS = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64]
DIMS = [64, 128]


def errors(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Of predicted against measured."""
    off = np.array([predicted / measured - 1 for predicted, measured in pairs])
    size = np.abs(off)
    return {
        "rows": len(off),
        "median": round(float(np.median(size)), 4),
        "p95": round(float(np.quantile(size, 0.95)), 4),
        "bias": round(float(np.median(off)), 4),
    }


def linear_table(rows: Rows, origin: dict[str, str]) -> Row:
    """Held out are whole shapes (all m of an n, k), so the error is that of a model whose shapes were not measured."""
    m_axis = [m for m in M if any(key[0] == m for key in rows)]
    n_axis, k_axis = (sorted({key[i] for key in rows}) for i in (1, 2))
    cube = np.full((len(n_axis), len(k_axis), len(m_axis)), np.nan)
    for (m, n, k), us in rows.items():
        if m in m_axis and not held_out(n, k):
            cube[n_axis.index(n), k_axis.index(k), m_axis.index(m)] = math.log2(us)
    for i in range(len(m_axis)):
        cube[:, :, i] = fill(cube[:, :, i], (n_axis, k_axis), (1.0, 1.0))
    return {**origin, "m": m_axis, "n": n_axis, "k": k_axis, "values": coded(pool(cube, 2))}


def linear_groups(table: GpuTable, name: str, rows: Rows) -> Groups:
    """Shapes that are held out, and numbers of tokens between those stored."""
    return {
        "shapes": some(key for key in rows if held_out(*key[1:])),
        "tokens": some(key for key in rows if not held_out(*key[1:]) and key[0] not in table.tokens(name)),
    }


def linear_us(table: GpuTable, name: str, m: int, n: int, k: int) -> float:
    return table.linear_grid(name, n, k).ns(m, 1) / 1000


def families(pairs: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Heads that go together: those with the same few KV heads, and those where each head has its own."""
    pairs = sorted(pairs)
    few = sorted({kv for h, kv in pairs if h > kv})
    grouped = [[pair for pair in pairs if pair[1] == kv] for kv in few]
    own = [pair for pair in pairs if pair[1] not in few]
    return [*grouped, own] if own else grouped


def attention_table(rows: Rows, kind: str) -> Row:
    counts, lengths = (PROMPTS, LENGTHS) if kind == "prefill" else (SEQUENCES, CONTEXTS)
    powers = (1.0, 1.0, 2.0) if kind == "prefill" else (0.0, 1.0, 1.0)
    table: Row = {"pairs": [], "rows": counts, "columns": lengths, "values": []}
    for family in families({key[:2] for key in rows if key[0] in HEADS}):
        cube = np.full((len(family), len(counts), len(lengths)), np.nan)
        for key, us in rows.items():
            if key[:2] in family and key[2] in counts and key[3] in lengths and not held_out(kind, *key):
                cube[family.index(key[:2]), counts.index(key[2]), lengths.index(key[3])] = math.log2(us)
        for pair, grid in zip(family, fill(cube, ([h for h, _ in family], counts, lengths), powers), strict=True):
            for _ in range(20):
                grid = pool(pool(grid, 1), 0)
            table["pairs"].append(list(pair))
            table["values"].append(coded(np.maximum.accumulate(np.maximum.accumulate(grid, 0), 1)))
    return table


def attention_us(table: GpuTable, kind: str, dim: int, key: tuple[int, ...]) -> float:
    heads, kv, count, length = key
    decode = table.attention("decode", heads, kv, dim)
    if kind == "decode":
        return decode.ns(count, length) / 1000
    prefill = table.attention("prefill", heads, kv, dim)
    return prefill_ns(prefill, decode, count, count * length, count * length * length / 2) / 1000


def attention_groups(table: GpuTable, kind: str, dim: int, rows: Rows) -> Groups:
    """Held-out rows of stored heads, lengths between those stored, and heads that are not stored."""
    operator = table.raw[kind][str(dim)]
    pairs = {tuple(pair) for pair in operator["pairs"]}
    lengths = operator["columns"]
    usual = [key for key in rows if key[3] >= lengths[0]]
    groups = {
        "held_out": some(k for k in usual if k[:2] in pairs and k[3] in lengths and held_out(kind, *k)),
        "lengths": some(k for k in usual if k[:2] in pairs and k[3] not in lengths),
        "heads": some(k for k in usual if k[:2] not in pairs),
    }
    return {name: keys for name, keys in groups.items() if keys}


def precisions(raw: Row) -> dict[str, str]:
    names = {"fp16": "bf16", "bf16": "bf16"}
    if "fp8" in raw["linear"]:
        names["fp8"] = "fp8"
    if "int8" in raw["linear"]:
        names["int8"] = "int8"
    elif "fp8" in raw["linear"] and raw["flops"].get("int8") == raw["flops"].get("fp8"):
        names["int8"] = "fp8"  # not measured; the units run both at one rate
    return names


def fit(folder: Path, gpu: str, source: dict[str, str], fixture: Path | None = None) -> Row:
    data = folder / "data" / gpu
    raw: Row = {"gpu": gpu, "aliases": GPUS[gpu], "estimated": False, "source": source, **system(folder, gpu)}
    sources = linear_sources(data, gpu)
    linears = {name: linear_rows(*where) for name, where in sources.items()}
    raw["linear"] = {name: linear_table(rows, origin(sources[name][0])) for name, rows in linears.items()}
    raw["precisions"] = precisions(raw)
    attention: dict[tuple[str, int], Rows] = {}
    for kind, stem in (("prefill", "context"), ("decode", "generation")):
        path = newest(data / "attention", "vllm", f"{stem}_attention_perf.parquet")
        raw["device"] = pq.read_table(path, columns=["device"]).column(0)[0].as_py()
        found = {dim: attention_rows(path, dim) for dim in DIMS}
        found = {dim: rows for dim, rows in found.items() if rows}
        if kind == "decode":
            raw["stream_fraction"] = max(stream_fraction(rows, dim, raw["bandwidth"]) for dim, rows in found.items())
            rate = raw["stream_fraction"] * raw["bandwidth"]
            found = {dim: from_memory(rows, dim, rate) for dim, rows in found.items()}
        attention |= {(kind, dim): rows for dim, rows in found.items()}
        raw[kind] = {str(dim): {**origin(path), **attention_table(r, kind)} for dim, r in found.items()}
    examine(raw, linears, attention, fixture)
    return raw


def examine(
    raw: Row,
    linears: dict[str, Rows],
    attention: dict[tuple[str, int], Rows],
    fixture: Path | None,
) -> None:
    """Add the errors to a table; the rows that are held out go into `fixture`, so that a test can find the same."""
    table, held = GpuTable(raw), {}
    for name, rows in linears.items():
        groups = linear_groups(table, name, rows)
        raw["linear"][name]["error"] = {
            group: errors((linear_us(table, name, *key), rows[key]) for key in keys) for group, keys in groups.items()
        }
        held[f"linear {name}"] = [[*key, round(rows[key], 2)] for key in groups["shapes"]]
    for (kind, dim), rows in attention.items():
        groups = attention_groups(table, kind, dim, rows)
        raw[kind][str(dim)]["error"] = {
            group: errors((attention_us(table, kind, dim, key), rows[key]) for key in keys)
            for group, keys in groups.items()
        }
        held[f"{kind} {dim}"] = [[*key, round(rows[key], 2)] for key in groups["held_out"]]
    if fixture:
        fixture.write_text(json.dumps({"gpu": raw["gpu"], **held}, separators=(",", ":")) + "\n")


def report(raw: Row) -> None:
    for kind in ("linear", "prefill", "decode"):
        for name, table in raw[kind].items():
            for what, error in table["error"].items():
                line = f"{raw['gpu']:20} {kind:8} {name:5} {what:9} {error['rows']:5} rows"
                print(f"{line}  median {error['median']:7.1%}  P95 {error['p95']:7.1%}  bias {error['bias']:+7.1%}")


def write(raw: Row) -> None:
    """A line for each block of values, so that a change can be read."""
    text = json.dumps(raw, separators=(",", ":")).replace("]],", "]],\n").replace('"values"', '\n"values"')
    (TABLES / f"{raw['gpu']}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="folder that the wheel was unpacked into")
    parser.add_argument("gpus", nargs="*", help="only these")
    parser.add_argument("--fixture", type=Path, help="write the held-out rows of the (last) GPU to this file")
    arguments = parser.parse_args()
    folder, source = package(arguments.wheel)
    for gpu in arguments.gpus or GPUS:
        raw = fit(folder, gpu, source, arguments.fixture)
        write(raw)
        report(raw)


if __name__ == "__main__":
    main()
