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

from sparkdl.frame import Array
from sparkdl.keyed import arrays, columns, memory, table
from sparkdl.keyed.arrays import Mapped
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.table import KeyedTable
from sparkdl.keyed.tiers import Tiered

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
    one, other = KeyedTable(rule(**options)), KeyedTable(rule(**options), shared)
    beside = KeyedTable(rule(seed=8), shared)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        for module in (columns, table):  # tables of many blocks
            patch.setattr(module, "BLOCK", data.draw(st.sampled_from([7, 1 << 17])))
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


def tiered(folder: Path, nbytes: int = 20_000, count: int = 2000) -> Tiered:
    made = Tiered(4, np.dtype(np.float32), RowMemory(nbytes, [str(folder)]), [ROW])
    made.add({ROW: np.arange(4 * count, dtype=np.float32).reshape(-1, 4)})
    return made


def test_what_is_used_often_stays_in_memory(tmp_path: Path) -> None:
    own = tiered(tmp_path)
    often = np.arange(700, 900)
    random = np.random.default_rng(0)
    for _ in range(50):
        own.read(often)
        own.read(np.unique(random.integers(900, 2000, 60)))
    where = own._where.values
    assert own.held * own._bytes <= 15_000
    assert (where[often] >= 0).mean() > 0.95
    assert (own.read(np.arange(2000), used=False)[ROW][:, 0] == np.arange(2000) * 4).all()


def test_tables_share_memory_by_what_they_need(tmp_path: Path) -> None:
    shared = RowMemory(40_000, [str(tmp_path)])
    large, small, late = (Tiered(4, np.dtype(np.float32), shared, [ROW]) for _ in range(3))
    large.add({ROW: np.ones((5000, 4), np.float32)})
    assert large.held * large._bytes > 29_000
    small.add({ROW: np.ones((10, 4), np.float32)})
    late.add({ROW: np.ones((5000, 4), np.float32)})
    assert small.held == 10
    assert abs(large.held - late.held) < 100
    assert (large.held + small.held + late.held) * large._bytes <= shared.hot_bytes


def test_places_that_are_free_are_used_again(tmp_path: Path) -> None:
    own = tiered(tmp_path)
    most = own._used
    for _ in range(5):
        own.shorten(500)
        own.add({ROW: np.full((1500, 4), 7, np.float32)})
    assert own._used <= most + 100
    found = own.read(np.arange(2000), used=False)[ROW]
    assert (found[:500, 0] == np.arange(500) * 4).all()
    assert (found[500:] == 7).all()


def test_files_have_no_names_and_end_with_their_arrays(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    own = tiered(tmp_path)
    own.extended(fresh)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) > before
    del own
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_pages_of_files_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[Mapped] = []
    trim = Mapped.trim
    monkeypatch.setattr(Mapped, "trim", lambda self: (trimmed.append(self), trim(self))[1])
    shared = RowMemory(40_000, [str(tmp_path)])
    monkeypatch.setattr(memory, "_mapped_bytes", lambda: shared._before + 10_001)
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
