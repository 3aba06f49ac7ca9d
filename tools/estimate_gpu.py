"""Tables of GPUs that nobody measured: the datasheet times the fractions that measured GPUs reach.

    python tools/estimate_gpu.py wheel     # the folder that fit_gpu.py reads

How much of the peak rate, and of the bandwidth, an operator reaches depends on how long it would take at the peak
(short ones are all latency). These curves are learned on the measured GPUs nearest in kind. The error in each file is
that of the same estimate for a measured GPU, learned without it.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fit_gpu import CONTEXTS, HEADS, LENGTHS, PROMPTS, SEQUENCES, M, errors, report, write
from grids import coded, pool
from measurements import (
    Row,
    attention_rows,
    from_memory,
    linear_rows,
    linear_sources,
    newest,
    package,
    some,
    stream_fraction,
    system,
)

DONORS = ["a100_sxm", "l40s"]
GIB = 2**30
SHEETS: dict[str, Row] = {  # dense rates; memory as the driver reports it
    "t4": {"aliases": [], "memory_bytes": 15 * GIB, "bandwidth": 320e9, "flops": {"fp16": 65e12, "int8": 130e12}},
    "l4": {
        "aliases": [],
        "memory_bytes": 22.5 * GIB,
        "bandwidth": 300e9,
        "flops": {"bf16": 121e12, "int8": 242e12, "fp8": 242e12},
    },
    "a10": {
        "aliases": ["a10_24gb"],
        "memory_bytes": 22.5 * GIB,
        "bandwidth": 600e9,
        "flops": {"bf16": 125e12, "int8": 250e12},
    },
}
RESERVED = GIB  # for the runtime, on small GPUs; a guess
WIDTHS = [2**i for i in range(7, 17)]  # inputs and outputs of linear layers in an estimated table
DIM = 128
NEVER = 1e-9


class Need(NamedTuple):
    """What an operator must do at least."""

    flops: float
    bytes: float


def linear_need(m: int, n: int, k: int, size: int) -> Need:
    return Need(2.0 * m * n * k, float(n * k * size + m * k * 2 + m * n * 2))


def attention_need(kind: str, heads: int, kv: int, count: int, length: int) -> Need:
    if kind == "decode":
        return Need(NEVER, float(count * length * kv * DIM * 4))  # never bound by products
    return Need(2.0 * count * heads * DIM * length**2, float(count * length * (heads + kv) * DIM * 4))


class Fractions:
    """Part of the peak that is reached, by µs at the peak: one curve for arithmetic, one for memory."""

    def __init__(self, samples: list[tuple[float, float, float]]) -> None:
        """`samples`: µs of arithmetic at its peak, µs of memory at its peak, µs measured."""
        self.curves = [self.curve([(s[i], s[i] / s[2]) for s in samples if s[i] > 2 * s[1 - i]]) for i in (0, 1)]
        self.least = min(s[2] for s in samples)

    @staticmethod
    def curve(points: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
        bins: dict[int, list[float]] = defaultdict(list)
        for peak, fraction in points:
            bins[round(2 * math.log2(peak))].append(math.log2(fraction))
        at = sorted(bins)
        return np.array(at) / 2, pool(np.array([np.median(bins[i]) for i in at]), 0)

    def us(self, arithmetic: float, memory: float) -> float:
        """The slower of the two, and never faster than anything that was measured."""
        return max(self.bound(0, arithmetic), self.bound(1, memory), self.least)

    def bound(self, which: int, peak: float) -> float:
        at, fractions = self.curves[which]
        return float(peak / 2.0 ** np.interp(math.log2(peak), at, fractions)) if len(at) else 0.0


def peaks(need: Need, flops: float, bandwidth: float) -> tuple[float, float]:
    """µs of arithmetic and of memory at the peak."""
    return need.flops / flops * 1e6, need.bytes / bandwidth * 1e6


class Measured:
    """Measurements of one GPU as (need, µs) per operator; 8-bit linear layers are int8 or fp8, whichever there is."""

    def __init__(self, folder: Path, gpu: str) -> None:
        data, self.sheet = folder / "data" / gpu, system(folder, gpu)
        sources = linear_sources(data, gpu)
        eight = "int8" if "int8" in sources else "fp8"
        self.rows: dict[str, list[tuple[Need, float]]] = {}
        for name, source, size in (("16 bit", "bf16", 2), ("8 bit", eight, 1)):
            rows = linear_rows(*sources[source])
            self.rows[name] = [(linear_need(*key, size), rows[key]) for key in some(rows) if min(key[1:]) >= 512]
        for kind, stem in (("prefill", "context"), ("decode", "generation")):
            rows = attention_rows(newest(data / "attention", "vllm", f"{stem}_attention_perf.parquet"), DIM)
            if kind == "decode":
                bandwidth = self.sheet["bandwidth"]
                rows = from_memory(rows, DIM, stream_fraction(rows, DIM, bandwidth) * bandwidth)
            self.rows[kind] = [(attention_need(kind, *key), rows[key]) for key in some(rows)]

    def samples(self, name: str) -> list[tuple[float, float, float]]:
        flops = self.sheet["flops"]["int8" if name == "8 bit" else "bf16"]
        return [(*peaks(need, flops, self.sheet["bandwidth"]), us) for need, us in self.rows[name]]


def learned(donors: list[Measured], name: str) -> Fractions:
    return Fractions([sample for donor in donors for sample in donor.samples(name)])


def left_out(donors: dict[str, Measured], name: str) -> Row:
    """The error for each donor as if it had not been measured."""
    found = {}
    for gpu, donor in donors.items():
        fractions = learned([other for key, other in donors.items() if key != gpu], name)
        found[f"{gpu}"] = errors((fractions.us(a, b), us) for a, b, us in donor.samples(name))
    return found


def linear_table(fractions: Fractions, flops: float, bandwidth: float, size: int) -> Row:
    cube = np.array(
        [
            [[math.log2(fractions.us(*peaks(linear_need(m, n, k, size), flops, bandwidth))) for m in M] for k in WIDTHS]
            for n in WIDTHS
        ]
    )
    return {"m": M, "n": WIDTHS, "k": WIDTHS, "values": coded(np.maximum.accumulate(cube, 2))}


def attention_table(kind: str, fractions: Fractions, flops: float, bandwidth: float) -> Row:
    counts, lengths = (PROMPTS, LENGTHS) if kind == "prefill" else (SEQUENCES, CONTEXTS)
    pairs = [(heads, kv) for kv in (1, 2, 4, 8) for heads in HEADS if heads % kv == 0]
    values = []
    for pair in pairs:
        grid = np.array(
            [
                [math.log2(fractions.us(*peaks(attention_need(kind, *pair, b, s), flops, bandwidth))) for s in lengths]
                for b in counts
            ]
        )
        values.append(coded(np.maximum.accumulate(np.maximum.accumulate(grid, 0), 1)))
    return {"pairs": [list(pair) for pair in pairs], "rows": counts, "columns": lengths, "values": values}


def estimate(gpu: str, donors: dict[str, Measured], source: dict[str, str]) -> Row:
    sheet, first = SHEETS[gpu], donors[DONORS[0]].sheet
    flops, bandwidth = sheet["flops"], sheet["bandwidth"]
    plain = "bf16" if "bf16" in flops else "fp16"
    curves = {name: learned(list(donors.values()), name) for name in ("16 bit", "8 bit", "prefill", "decode")}
    error = {name: left_out(donors, name) for name in curves}
    how = (
        "peak rates of the datasheet times the fractions of them that measured GPUs reach, by time at the peak; "
        f"learned on {' and '.join(DONORS)}; the errors are those of the same estimate for each of these, "
        "learned on the other. A limit on power that lowers the clock is not in it"
    )
    linear = {plain: {**linear_table(curves["16 bit"], flops[plain], bandwidth, 2), "error": error["16 bit"]}}
    linear["int8"] = {**linear_table(curves["8 bit"], flops["int8"], bandwidth, 1), "error": error["8 bit"]}
    names = {"fp16": plain, "int8": "int8"} | ({"bf16": plain} if plain == "bf16" else {})
    return {
        "gpu": gpu,
        "device": f"NVIDIA {gpu.upper()}",
        "aliases": sheet["aliases"],
        "estimated": True,
        "how": how,
        "source": source,
        "memory_bytes": int(sheet["memory_bytes"]),
        "reserved_bytes": RESERVED,
        "bandwidth": int(bandwidth),
        "bandwidth_fraction": first["bandwidth_fraction"],
        "kernel_ns": first["kernel_ns"],
        "flops": {name: int(rate) for name, rate in flops.items()},
        "precisions": names | ({"fp8": "int8"} if "fp8" in flops else {}),
        "linear": linear,
        **{
            kind: {str(DIM): {**attention_table(kind, curves[kind], flops[plain], bandwidth), "error": error[kind]}}
            for kind in ("prefill", "decode")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="folder that the wheel was unpacked into")
    folder, source = package(parser.parse_args().wheel)
    donors = {gpu: Measured(folder, gpu) for gpu in DONORS}
    for gpu in SHEETS:
        raw = estimate(gpu, donors, source)
        write(raw)
        report(raw)


if __name__ == "__main__":
    main()
