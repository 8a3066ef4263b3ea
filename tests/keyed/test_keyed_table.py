"""Tables from ids to rows: the same rows in any order, and what comes and goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.keyed.entries import ROW, Entries, joined, merged
from sparkdl.keyed.mix import initial_rows, owners
from sparkdl.keyed.slots import SlotTable
from sparkdl.keyed.table import HOT, KeyedTable, TableRule

GENERATOR = np.random.default_rng(0)
IDS = np.unique(GENERATOR.integers(-(2**62), 2**62, 5000))


def rule(**options: Any) -> TableRule:
    return TableRule(**{"width": 4, "dtype": "float32", "seed": 7, "std": 1.0} | options)


def look_up(table: KeyedTable, ids: Any, iteration: int, times: int = 1) -> int:
    return table.count(np.array(ids), np.full(len(ids), times), iteration, lambda rows: {})


def arrays_of(entries: Entries) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in entries.arrays("").items()}


def test_slots_find_what_was_added() -> None:
    slots = SlotTable()
    for part in np.array_split(GENERATOR.permutation(IDS), 13):
        numbers = slots.add(part)
        assert (slots.ids[numbers] == part).all()
    assert (slots.ids[slots.find(IDS)] == IDS).all()
    assert (slots.find(np.array([1, 2, 3])) == -1).all()


def test_a_first_row_follows_from_seed_and_id_alone() -> None:
    rows = initial_rows(7, IDS, 4, 0.5, np.dtype(np.float32))
    order = GENERATOR.permutation(len(IDS))
    assert (initial_rows(7, IDS[order], 4, 0.5, np.dtype(np.float32)) == rows[order]).all()
    assert (initial_rows(8, IDS, 4, 0.5, np.dtype(np.float32)) != rows).any(1).all()
    assert abs(rows.mean()) < 0.02
    assert rows.std() == pytest.approx(0.5, rel=0.02)


def test_owners_have_about_the_same_number() -> None:
    counts = np.bincount(owners(IDS, 7))
    assert len(counts) == 7
    assert counts.min() > 0.8 * counts.mean()


def test_an_id_gets_its_row_when_it_was_looked_up_often_enough() -> None:
    table = KeyedTable(rule(min_count=3))
    assert look_up(table, [1, 2], 0) == 0
    assert look_up(table, [2, 3], 1, times=2) == 1
    there, rows = table.look_up(np.array([1, 2, 3, 4]))
    assert there.tolist() == [False, True, False, False]
    assert (rows == initial_rows(7, np.array([2]), 4, 1.0, np.dtype(np.float32))).all()
    assert (len(table), table.known) == (1, 3)


def test_look_ups_of_ids_that_were_met_lately_are_hot() -> None:
    table = KeyedTable(rule(min_count=10))
    found = []
    for ids, iteration in (([1, 2], 0), ([2, 3], HOT), ([2, 3, 4], HOT + 1), ([1, 2], 2 * HOT + 2)):
        look_up(table, ids, iteration, times=5)
        found.append(table.hot)
    assert found == [0, 5, 10, 0]


def test_old_and_small_entries_are_evicted() -> None:
    table = KeyedTable(rule(max_age=3, min_norm=0.1, evict_every=4))
    look_up(table, [1, 2, 3], 0)
    look_up(table, [2, 3], 3)
    table.update(np.array([3]), {ROW: np.full((1, 4), 0.01, np.float32)}, lambda rows: {}, 4)
    assert table.evict(3).tolist() == []  # not yet
    assert table.evict(4).tolist() == [1, 3]
    assert table.look_up(np.array([1, 2, 3]))[0].tolist() == [False, True, False]
    assert look_up(table, [1], 5) == 1  # it may come back


def test_parts_of_owners_make_up_the_whole() -> None:
    table = KeyedTable(rule(min_count=2))
    look_up(table, IDS, 0)
    look_up(table, IDS[::3], 4)
    sums = np.ones((len(IDS[::3]), 4), np.float32)
    table.update(IDS[::3], {"sum": sums}, lambda rows: {"sum": rows * 0}, 5)
    assert not table.changed(4).since  # all rows have a sum now
    whole = table.entries().sorted()
    for ranks in (1, 3):
        parts = [table.entries().of_owner(rank, ranks) for rank in range(ranks)]
        assert arrays_of(joined(parts)) == arrays_of(whole)
    copy = KeyedTable(rule(min_count=2))
    copy.put(Entries.read(whole.arrays("x."), "x.", whole.values))
    assert arrays_of(copy.entries().sorted()) == arrays_of(whole)


def test_a_change_that_is_written_elsewhere_leads_to_the_same() -> None:
    one, other = (KeyedTable(rule(min_count=2, max_age=2, evict_every=3)) for _ in range(2))
    for iteration in range(12):
        gone = one.evict(iteration)
        ids = np.unique(GENERATOR.choice(IDS[:40], 9))
        look_up(one, ids, iteration)
        other.put(one.changes(ids, gone, iteration))
        assert arrays_of(one.entries().sorted()) == arrays_of(other.entries().sorted())


def test_changes_since_any_iteration_lead_to_the_table() -> None:
    table = KeyedTable(rule(min_count=2, max_age=4, min_norm=1.0, evict_every=3))
    ids = IDS[:60]
    states = [table.entries().sorted()]
    for iteration in range(20):
        table.evict(iteration)
        own = np.unique(GENERATOR.choice(ids, 12))
        look_up(table, own, iteration)
        states.append(table.entries().sorted())
    for begin in range(1, 20):
        parts = [states[begin], *(states[n].changed(n - 1) for n in range(begin + 1, 21))]
        assert all(part.since for part in parts[1:])
        assert arrays_of(merged(parts)) == arrays_of(states[-1]), begin
        one = [states[begin], states[-1].changed(begin)]
        assert arrays_of(merged(one)) == arrays_of(states[-1]), begin
        copy = KeyedTable(table.rule)
        for part in parts:
            copy.put(part)
        assert arrays_of(copy.entries().sorted()) == arrays_of(states[-1]), begin
    assert len(states[-1].gone)


def test_evictions_are_forgotten_if_they_are_too_many() -> None:
    table = KeyedTable(rule(max_age=1, evict_every=1))
    for iteration in range(8):
        table.evict(iteration)
        look_up(table, np.arange(1500) + 1500 * iteration, iteration)
    assert len(table.entries().gone) <= 4096
    assert not table.changed(1).since  # everything
    assert table.changed(6).since == 6
