"""The ring of samples on disk: what is read back is what was written, whatever happened between."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest

from observe import window
from observe.ring import Ring, RingError, replay, segments

Samples = list[tuple[int, dict[str, float]]]


def some(count: int, seed: int = 0, names: int = 20) -> Samples:
    """Samples of series that change, stay, vanish and come back."""
    random, values, taken = Random(seed), {}, []
    for at in range(count):
        for _ in range(5):
            name = f'name{{label="{random.randrange(names)}"}}'
            values[name] = random.choice([random.random(), float(random.randrange(9)), 2.0**60, -math.inf])
            if random.random() < 0.2:
                values.pop(random.choice(list(values)))
        taken.append((at * 10**9, dict(values)))
    return taken


def read(folder: Path) -> Samples:
    """The samples of a ring, whole."""
    now: dict[str, float] = {}
    found = []
    for step in replay(folder):
        now = dict(step.changed) if step.fresh else {**now, **step.changed}
        for text in step.gone:
            del now[text]
        found.append((step.time, now))
    return found


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in segments(folder))


def test_what_was_written_is_read_back_also_after_a_second_run(tmp_path: Path) -> None:
    samples = some(300)
    for part in (samples[:120], samples[120:]):
        with Ring(tmp_path / "deep" / "ring", 2**20) as ring:
            for now, values in part:
                ring.append(now, values)
    assert read(tmp_path / "deep" / "ring") == samples


def test_what_is_no_number_is_not_there(tmp_path: Path) -> None:
    with Ring(tmp_path, 2**20) as ring:
        for at, value in enumerate((1.0, math.nan, 2.0)):
            ring.append(at, {"a": value, "b": 0.0})
    assert read(tmp_path) == [(0, {"a": 1, "b": 0}), (1, {"b": 0}), (2, {"a": 2, "b": 0})]


def test_it_never_takes_more_than_it_may_and_keeps_the_newest(tmp_path: Path) -> None:
    samples, bound = some(3000), 40_000
    (tmp_path / "samples-notes.jsonl").write_text("someone's own")
    for part in (samples[:1700], samples[1700:]):
        with Ring(tmp_path, bound) as ring:
            for now, values in part:
                ring.append(now, values)
                assert size(tmp_path) <= bound
    kept = read(tmp_path)
    assert kept == samples[-len(kept) :]
    assert bound * 0.7 < size(tmp_path)
    assert (tmp_path / "samples-notes.jsonl").exists()
    with Ring(tmp_path, 10_000):
        assert size(tmp_path) <= 10_000  # a smaller bound holds at once


def test_a_crash_at_any_byte_loses_at_most_the_last_line(tmp_path: Path) -> None:
    samples = some(5)
    with Ring(tmp_path, 2**20) as ring:
        for now, values in samples:
            ring.append(now, values)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        assert read(tmp_path) == samples[: max(0, lines - 1)]
    with Ring(tmp_path, 2**20) as ring:  # and the next run goes on
        ring.append(*samples[-1])
    assert read(tmp_path) == samples


def test_a_line_that_was_damaged_ends_its_segment_only(tmp_path: Path) -> None:
    samples = some(30)
    for part in (samples[:20], samples[20:]):
        with Ring(tmp_path, 2**20) as ring:
            for now, values in part:
                ring.append(now, values)
    first = segments(tmp_path)[0]
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([*lines[:6], b"\x00{\n", *lines[7:]]))
    assert read(tmp_path) == samples[:5] + samples[20:]


@pytest.mark.parametrize("text", ['name{label="0', "", "#", "no name", "5 {", "name\nname"])
def test_a_series_that_was_damaged_ends_its_segment_only(tmp_path: Path, text: str) -> None:
    for part in ([0, 1], [2]):
        with Ring(tmp_path, 2**20) as ring:
            for at in part:
                ring.append(at, {"kept": float(at)} | ({"damaged": 1.0} if at == 1 else {}))
    first = segments(tmp_path)[0]
    first.write_text(first.read_text().replace('"damaged"', json.dumps(text)))
    assert read(tmp_path) == [(0, {"kept": 0.0}), (2, {"kept": 2.0})]
    assert window.read(tmp_path).latest("kept") == 2


DAMAGED = [
    "[]", "5", "null", "[" * 100_000, "{}", '{"t":null}', '{"t":true}', '{"t":1.0}', '{"t":Infinity}', '{"t":1e30}',
    '{"t":-1}', f'{{"t":1{"0" * 30}}}', f'{{"t":2,"set":[0,{"9" * 400}]}}', '{"t":2,"set":[0,NaN]}',
    '{"t":2,"set":[0,1e400]}', '{"t":2,"set":[0,"1"]}', '{"t":2,"set":[0,true]}', '{"t":2,"set":[0]}',
    '{"t":2,"set":[-1,1]}', '{"t":2,"set":[9,1]}', '{"t":2,"set":{"0":1}}', '{"t":2,"gone":[[0]]}', '{"t":2,"gone":0}',
    '{"t":2,"new":[[1]]}', '{"t":2,"new":"x"}', '{"t":2,"new":["#x"],"set":[1,1]}', '{"t":2,"new":["a\\ud800"]}',
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: str(line)[:30])
def test_a_line_of_another_shape_ends_its_segment_only(tmp_path: Path, line: str) -> None:
    for part in ([0, 1], [2]):
        with Ring(tmp_path, 2**20) as ring:
            for at in part:
                ring.append(at, {"kept": float(at)})
    first = segments(tmp_path)[0]
    begin, kept, _ = first.read_text().splitlines()
    first.write_text("\n".join([begin, kept, line, '{"t":3}', ""]))
    assert read(tmp_path) == [(0, {"kept": 0.0}), (2, {"kept": 2.0})]
    assert list(window.read(tmp_path).times) == [0, 2]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_segment_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "samples-00000001.jsonl")
    with pytest.raises(RingError, match=r"samples-00000001.jsonl: is no regular file; give a folder that gapless obs"):
        list(replay(tmp_path))


def test_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Every look sees whole samples, without a hole, the newest of those written before it."""
    samples, written = some(4000), [0]  # how many, at least
    by_time: Mapping[int, dict[str, float]] = dict(samples)
    with Ring(tmp_path, 60_000) as ring:
        ring.append(*samples[0])

        def write() -> None:
            for sample in samples[1:]:
                ring.append(*sample)
                written[0] += 1

        writer = threading.Thread(target=write)
        writer.start()
        looks = 0
        while writer.is_alive() or not looks:
            before = written[0]
            found = read(tmp_path)
            looks += 1
            assert all(by_time[now] == values for now, values in found)
            assert found[-1][0] >= before * 10**9
        writer.join()
    assert read(tmp_path)[-1] == samples[-1]


def test_only_one_may_write_and_many_may_read(tmp_path: Path) -> None:
    with Ring(tmp_path, 2**20) as ring:
        ring.append(*some(1)[0])
        with pytest.raises(RingError, match="another process is writing samples there; give another folder"):
            Ring(tmp_path, 2**20)
        assert read(tmp_path) == some(1)
    Ring(tmp_path, 2**20).close()


def test_what_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RingError, match=r"file: File exists; give a folder that can be written$"):
        Ring(tmp_path / "file", 2**20)
    with pytest.raises(RingError, match=r"nowhere: No such file or directory; give a folder that gapless observe"):
        list(replay(tmp_path / "nowhere"))
    with pytest.raises(RingError, match="holds no samples"):
        list(replay(tmp_path))
    (tmp_path / "samples-00000001.jsonl").write_text('{"gapless_ring":9}\n')
    with pytest.raises(RingError, match="is not of this version's format"):
        list(replay(tmp_path))
    with Ring(tmp_path / "small", 1000) as ring, pytest.raises(RingError, match="a larger --size is needed"):
        ring.append(0, {f"series_{at}": 0.0 for at in range(1000)})
