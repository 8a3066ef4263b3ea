"""Tables of which memory holds a part: the bits of tables in memory, and bounds that hold."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_keyed_table import arrays_of, rule

from sparkdl.keyed import columns, memory, store
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.index import CompactIndex
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import mix
from sparkdl.keyed.table import KeyedTable
from sparkdl.keyed.tiers import TieredStore
from sparkdl.wire import arrays
from sparkdl.wire.arrays import Grown, Mapped, Records
from sparkdl.wire.frame import Array

IDS = np.unique(np.random.default_rng(0).integers(-(2**62), 2**62, 400))


def fresh(rows: Array) -> dict[str, Array]:
    return {"sum": rows * 2, "other": np.ones_like(rows)}


def step(of: KeyedTable, ids: Any, iteration: int, by: float) -> list[Any]:
    """Do all that an owner does with its table in a step, and return what others get of it."""
    gone = of.evict(iteration)
    of.count(ids, np.full(len(ids), 1 + iteration % 2), iteration, fresh)
    there, rows = of.look_up(ids)
    own = ids[there]
    if len(own):
        now = {name: values + np.float32(by) for name, values in of.columns_of(own).items()}
        of.update(own, {**fresh(now[ROW]), **now}, fresh, iteration + 1)
    changed = of.changes(ids, gone, iteration)
    return [gone.tobytes(), there.tobytes(), rows.tobytes(), arrays_of(changed.sorted())]


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_which_rows_are_in_memory_changes_no_bit(tmp_path_factory: Any, data: st.DataObject) -> None:
    folders = [str(tmp_path_factory.mktemp("files"))]
    options = {"min_count": 2, "max_age": 5, "min_norm": 0.5, "evict_every": 3}
    shared = RowMemory(data.draw(st.integers(1, 30_000)), folders)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        block = data.draw(st.sampled_from([7, 1 << 17]))  # tables of many blocks
        for module, name in ((columns, "BLOCK"), (store, "BLOCK"), (memory, "_LEAST_AT_ONCE")):
            patch.setattr(module, name, block)
        one, other = KeyedTable(rule(**options)), KeyedTable(rule(**options), shared)
        beside = KeyedTable(rule(seed=8), shared)
        for iteration in range(data.draw(st.integers(1, 14))):
            ids = np.unique(random.choice(IDS, data.draw(st.integers(1, 200))))
            by = float(random.normal())
            assert step(one, ids, iteration, by) == step(other, ids, iteration, by)
            beside.count(50 * iteration + np.arange(50), np.ones(50, np.int64), iteration, fresh)
            assert arrays_of(one.entries()) == arrays_of(other.entries())
            if not iteration % 4:  # another process of the executor, or a replay, goes on
                kept = other.entries()
                other = KeyedTable(rule(**options), shared)
                other.put(kept)
        assert arrays_of(one.changed(2).sorted()) == arrays_of(other.changed(2).sorted())


def numbered(first: int, count: int) -> Any:
    """Return ids, and the rows of some numbers."""
    numbers = np.arange(first, first + count)
    rows = np.arange(4 * first, 4 * (first + count), dtype=np.float32).reshape(-1, 4)
    return mix(numbers.view(np.uint64)).view(np.int64), rows


def add(own: TieredStore, first: int, count: int) -> Any:
    ids, rows = numbered(first, count)
    numbers = own.number(ids)
    own.admit(numbers, {ROW: rows})
    return numbers


def tiered(folder: Path) -> TieredStore:
    made = TieredStore(4, np.dtype(np.float32), RowMemory(100_000, [str(folder)]))
    for first in range(0, 2000, 100):
        add(made, first, 100)
    return made


def test_what_is_used_often_stays_in_memory(tmp_path: Path) -> None:
    own = tiered(tmp_path)
    ids, rows = numbered(0, 2000)
    random = np.random.default_rng(0)
    often = np.arange(700, 900)
    for _ in range(50):
        own.number(ids[often])
        own.number(ids[np.unique(random.integers(900, 2000, 60))])
    assert 300 < own._hot.held < 1000
    assert own.is_held(often).mean() > 0.95
    assert own.read(np.arange(2000))[ROW].tobytes() == rows.tobytes()


def test_the_bound_has_index_and_batch_in_it(tmp_path: Path) -> None:
    shared = RowMemory(400_000, [str(tmp_path)])
    own = TieredStore(16, np.dtype(np.float32), shared)
    for first in range(0, 8000, 100):
        own.number(numbered(first, 100)[0])
    index = 5 * len(own._index._numbers) + 4 * len(own._where.values) + 4 * len(own._last.values)
    assert index < 22 * 8000
    held = own._hot.held * own._hot.nbytes
    assert 0.6 * 400_000 < held + index + 4 * own._batch * own._record < 400_000
    before = own._hot.held
    own.number(numbered(0, 500)[0])  # a larger batch leaves less for what is held
    assert own._hot.held < before
    small = shared.ask(tiered(tmp_path), 100, 10**9)  # the index of another table is larger than the bound
    assert small == 100
    assert shared.hot_bytes == 50_000


def test_tables_share_memory_by_what_they_need(tmp_path: Path) -> None:
    shared = RowMemory(1_000_000, [str(tmp_path)])
    large, small, late = (TieredStore(100, np.dtype(np.float32), shared) for _ in range(3))
    large.number(numbered(0, 1000)[0])
    for first in range(0, 5000, 100):
        large.number(numbered(first, 100)[0])
    before = large._hot.held
    small.number(numbered(0, 10)[0])
    for first in range(0, 5000, 1000):
        late.number(numbered(first, 1000)[0])
    assert small._hot.held == 10
    assert large._hot.held < before
    assert abs(large._hot.held - late._hot.held) < 100
    assert (large._hot.held + small._hot.held + late._hot.held) * large._record <= shared.hot_bytes


def test_places_that_are_free_are_used_again(tmp_path: Path) -> None:
    own = tiered(tmp_path)
    add(own, 2000, 1500)  # so large a batch leaves less for what is held
    most = 2 * own._log.size
    for turn in range(2, 7):
        own.keep(np.arange(len(own)) < 500)
        assert own.rows == 500
        add(own, 2000 * turn, 1500)
    assert own._log.size <= most
    found = own.read(np.arange(2000))[ROW]
    assert found[:500].tobytes() == numbered(0, 500)[1].tobytes()
    assert found[500:].tobytes() == numbered(12_000, 1500)[1].tobytes()
    assert (own.find(numbered(12_000, 1500)[0]) == np.arange(500, 2000)).all()
    assert (own.find(numbered(500, 1500)[0]) == -1).all()


def test_segments_of_the_file_are_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []
    clean = TieredStore._clean
    monkeypatch.setattr(TieredStore, "_clean", lambda own, n: [cleaned.append(n), clean(own, n)])
    own = tiered(tmp_path)
    random = np.random.default_rng(0)
    rows = numbered(0, 2000)[1].copy()
    for turn in range(200):
        numbers = np.unique(random.integers(0, len(own), 60))
        assert (own.number(numbered(0, 2000)[0][numbers]) == numbers).all()
        rows[numbers] += turn
        own.write(numbers, {ROW: rows[numbers]})
    assert len(cleaned) > 20
    assert own._log.size < 2.5 * 2000
    assert own.read(np.arange(2000))[ROW].tobytes() == rows.tobytes()


def test_files_have_no_names_and_end_with_their_arrays(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    own = tiered(tmp_path)
    own.extend(fresh)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) > before
    del own
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_ids_whose_hashes_are_alike_are_told_apart() -> None:
    index = CompactIndex()
    ids = np.unique(np.random.default_rng(1).integers(-(2**62), 2**62, 5000))
    asked = []

    def ids_at(numbers: Any) -> Any:
        asked.append(len(numbers))
        return ids[numbers]

    for part in np.array_split(np.arange(4000), 11):
        index.add(part, ids[part], lambda to=part[-1] + 1: np.array_split(ids[:to], 3))  # type: ignore[misc]
        assert (index.find(ids[: part[-1] + 1], ids_at) == np.arange(part[-1] + 1)).all()
    asked.clear()
    assert (index.find(ids[4000:], ids_at) == -1).all()
    assert sum(asked) < 100  # one of 256 ids is compared with another one


@pytest.mark.parametrize("slow", [0.0, 1.0])
def test_records_are_read_and_written_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: float
) -> None:
    monkeypatch.setattr(arrays, "_SLOW_SECONDS", slow)  # whether they are asked for before
    own = Records(str(tmp_path), 24)
    own.grow(5000)
    random = np.random.default_rng(0)
    values = random.integers(0, 255, (5000, 24)).astype(np.uint8)
    order = random.permutation(5000).astype(np.int32)
    own.write(order, values[order])
    own.write(order[:2000], values[order[:2000], 8:16] + 1, 8)
    values[order[:2000], 8:16] += 1
    assert (own.read(order) == values[order]).all()
    assert (own.read(order[:3000], 4, 12) == values[order[:3000], 4:12]).all()
    assert own.read(order[:0]).shape == (0, 24)


def test_an_array_that_grows_is_in_memory_once() -> None:
    own = Grown(np.int32)
    for size in (10, 100, 5_000_000):
        own.grow(size)
        own.values[size - 10 : size] = np.arange(size - 10, size)
    assert own.values[4_999_999] == 4_999_999
    assert (own.values[90:100] == np.arange(90, 100)).all()
    assert own.values[100:4_999_990].max() == 0


def test_pages_of_files_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[Mapped] = []
    trim = Mapped.trim
    monkeypatch.setattr(Mapped, "trim", lambda self: (trimmed.append(self), trim(self))[1])
    shared = RowMemory(40_000, [str(tmp_path)])
    monkeypatch.setattr(memory, "_mapped_bytes", lambda: shared._before + 2_501)
    values = shared.array(np.int64)
    values.grow(10_000)
    values.values[:] = 5
    shared.settle()
    assert trimmed == [values]
    assert (values.values[:10_000] == 5).all()


def test_a_full_disk_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays.os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left.*spark\.local\.dir"):
        tiered(tmp_path)
