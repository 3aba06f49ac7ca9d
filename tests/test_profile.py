"""Profiles: what is predicted between measured shapes, on real rows that were held out, and what is refused.

`data/profile.json` holds medians in ms of MiniLM in INT8 on two cores: by threads and length, at BATCHES texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_gen.profile import Prepare, Profile, ProfileError, Row

BATCHES, LENGTHS = (1, 2, 4, 8, 16, 32), (8, 15, 28, 56, 120, 256)
FILE = Path(__file__).parent / "data" / "profile.json"
MEASURED = {
    (int(threads), int(length), batch): taken
    for threads, lines in json.loads(FILE.read_text()).items()
    for length, times in lines.items()
    for batch, taken in zip(BATCHES, times, strict=True)
}


def row(batch: int, length: int, threads: int, p50: float) -> Row:
    return Row(batch, length, threads, p50, p50, 0.0, batch / p50 * 1e3, 9)


def profile(rows: Sequence[Row], runtime: Any = "onnxruntime") -> Profile:
    return Profile(
        format=3,
        machine="here",
        runtime=runtime,
        precision="int8",
        cores=2,
        host_memory=2**34,
        memory=2**28,
        prepare=Prepare(0.2, 0.1),
        cold=1.0,
        typical_length=28,
        run_cost=(1.0, 0.1),
        knee={"28": 8},
        rows=tuple(rows),
    )


def without(batch: int = 0, length: int = 0) -> Profile:
    """The real one, with a batch or a length held out."""
    return profile([row(b, n, t, taken) for (t, n, b), taken in MEASURED.items() if b != batch and n != length])


REAL = without()


@pytest.mark.parametrize(
    ("axis", "size"), [*(("batch", b) for b in BATCHES[1:-1]), *(("length", n) for n in LENGTHS[1:-1])]
)
def test_shapes_that_were_held_out_are_predicted(axis: str, size: int) -> None:
    held = [(t, n, b) for t, n, b in MEASURED if {"batch": b, "length": n}[axis] == size]
    predicted = without(**{axis: size})
    off = [abs(predicted.ns(b, n, t) / 1e6 / MEASURED[t, n, b] - 1) for t, n, b in held]
    assert len(held) == 12 and median(off) < 0.09 and sorted(off)[-2] < 0.25, off  # one in twelve may be a spike


def test_it_is_exact_where_it_was_measured() -> None:
    assert all(REAL.ns(b, n, t) == pytest.approx(taken * 1e6) for (t, n, b), taken in MEASURED.items())


def test_what_a_neighbour_held_up_takes_no_longer_than_a_larger_shape() -> None:
    spiked = [row(1, 0, 0, 5.0), row(2, 0, 0, 80.0), row(4, 0, 0, 9.0)]
    assert [profile(spiked).ns(b) for b in (1, 2, 3, 4)] == [5e6, 9e6, 9e6, 9e6]


SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 400), st.integers(0, 4))
TIMES = st.lists(st.floats(0.01, 1e5), min_size=18, max_size=18)


def grid(times: Sequence[float]) -> Profile:
    shapes = product((1, 2), (1, 4, 6), (8, 30, 300))
    return profile([row(b, n, t, taken) for (t, b, n), taken in zip(shapes, times, strict=True)])


@given(TIMES, SHAPES, st.integers(0, 30), st.integers(0, 100))
def test_more_rows_or_tokens_never_take_less(
    times: list[float], shape: tuple[int, int, int], rows: int, tokens: int
) -> None:
    found, (batch, length, threads) = grid(times), shape
    least = found.ns(batch, length, threads)
    assert 0 < least <= found.ns(batch + rows, length + tokens, threads) * (1 + 1e-9)


@given(TIMES)
def test_it_is_never_more_than_was_measured_and_exact_where_that_is_in_order(times: list[float]) -> None:
    for found in (noisy := grid(times)).rows:
        assert noisy.ns(found.batch, found.length, found.threads) <= found.p50 * 1e6 * (1 + 1e-9)
    for found in (ordered := grid(sorted(times))).rows:
        assert ordered.ns(found.batch, found.length, found.threads) == pytest.approx(found.p50 * 1e6)


def test_beyond_the_grid_time_grows_with_the_size_and_below_it_stays() -> None:
    assert REAL.ns(64, 256, 1) == 2 * REAL.ns(32, 256, 1) and REAL.ns(32, 512, 1) == 2 * REAL.ns(32, 256, 1)
    assert REAL.ns(1, 1, 1) == REAL.ns(1, 8, 1)


def test_threads_between_those_measured_lie_between_and_more_help_no_more() -> None:
    rows = [row(b, 0, t, 1.0 + 6.0 * b / t) for t in (1, 2, 4) for b in (1, 8)]
    found = profile(rows)
    assert found.ns(8, 0, 3) == pytest.approx(
        (1 + 6 * 8 / 3) * 1e6
    )  # a part that threads share and one that they do not
    times = [found.ns(8, 0, threads) for threads in (1, 2, 3, 4, 16)]
    assert all(more <= fewer for fewer, more in pairwise(times)) and times[-1] == times[-2] == found.ns(8)


def test_on_a_gpu_threads_do_not_matter() -> None:
    found = profile([row(1, 0, 0, 2.0), row(4, 0, 0, 3.0)], runtime="tensorrt")
    assert {found.ns(1, 0, threads) for threads in (0, 1, 8)} == {2e6}


def written(path: Path, **changes: Any) -> Path:
    raw = asdict(REAL) | changes
    path.write_text(json.dumps({name: value for name, value in raw.items() if value != "gone"}))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = Profile.read(written(tmp_path / "p.json"))
    assert found == REAL and found.prepare_ms == 0.2 and found.run_cost == (1.0, 0.1)
    assert found.ns(3, 40, 2) == REAL.ns(3, 40, 2)


ROW = asdict(row(1, 8, 1, 1.0))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 2}, "format: Input should be 3"),
        ({"format": "gone"}, "format: Field required"),
        ({"rows": [{k: v for k, v in ROW.items() if k != "threads"}]}, "rows.0.threads: Field required"),
        ({"rows": []}, "rows: Tuple should have at least 1 item"),
        ({"rows": [ROW, ROW]}, "rows of 1 threads: not every batch with every length, once"),
        ({"rows": [ROW, ROW | {"batch": 2, "length": 9}]}, "rows of 1 threads: not every batch"),
        ({"rows": [ROW | {"p50": -1}]}, "rows.0.p50: Input should be greater than 0"),
        ({"rows": [ROW | {"p50": "1"}]}, "rows.0.p50: Input should be a valid number"),
        ({"rows": [ROW | {"batch": 1.5}]}, "rows.0.batch: Input should be a valid integer"),
        ({"rows": [ROW | {"p50": float("nan")}]}, "rows.0.p50"),
        ({"memory": -1}, "memory: Input should be greater than or equal to 0"),
        ({"cores": 0}, "cores: Input should be"),
        ({"runtime": "torch"}, "runtime: Input should be"),
        ({"prepare": None}, "prepare"),
        ({"more": 1}, "more: Unexpected keyword argument"),
    ],
)
def test_an_old_or_damaged_profile_is_refused_in_one_line(tmp_path: Path, changes: Any, told: str) -> None:
    path = written(tmp_path / "p.json", **changes)
    with pytest.raises(ProfileError) as caught:
        Profile.read(path, "gapless build embed --sla sla.yaml")
    line = str(caught.value)
    assert line.startswith(f"{path}: holds no profile ({told}") and "\n" not in line
    assert line.endswith("; run gapless build embed --sla sla.yaml --profile again") and caught.value.exit_status == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_what_is_no_json_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(ProfileError, match=r"^.*p\.json: holds no profile \(.*\); run .* again$"):
        Profile.read(tmp_path / "p.json")


def test_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"p\.json: No such file or directory; run gapless build NAME"):
        Profile.read(tmp_path / "p.json")
