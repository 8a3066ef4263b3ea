"""Counting Bloom filters: counts that are exact where there is room, and a bound where there is not."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_keyed_table import arrays_of, look_up, rule

from sparkdl.exceptions import ConfigError
from sparkdl.keyed.bloom import CountingBloom
from sparkdl.keyed.entries import Entries, joined, merged
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import owners, pages_of
from sparkdl.keyed.table import KeyedTable

ROOMY = CountingBloom(20_000, error=1e-6)
SMALL = CountingBloom(60, error=0.2)
IDS = np.unique(np.random.default_rng(0).integers(-(2**62), 2**62, 3000))


def table(
    counters: CountingBloom | None = ROOMY, memory: RowMemory | None = None, **options: Any
) -> KeyedTable:
    return KeyedTable(rule(counters=counters, **{"min_count": 3} | options), memory)


def batches(ids: Any = IDS, steps: int = 12, size: int = 300, seed: int = 1) -> list[Any]:
    """Return the ids of some steps, of which some are frequent, and how often each is looked up."""
    random = np.random.default_rng(seed)
    chosen = [ids[(len(ids) * random.random(size) ** 3).astype(np.int64)] for _ in range(steps)]
    return [np.unique(own, return_counts=True) for own in chosen]


def run(of: KeyedTable, steps: Any, first: int = 0) -> None:
    for iteration, (ids, counts) in enumerate(steps, first):
        of.evict(iteration)
        of.count(ids, counts, iteration, lambda rows: {})


def entries_of(of: KeyedTable) -> dict[str, bytes]:
    return arrays_of(of.entries().sorted())


def test_with_room_for_all_the_counts_are_exact() -> None:
    exact, counted = table(None), table()
    for iteration, (ids, counts) in enumerate(batches()):
        new = [of.count(ids, counts, iteration, lambda rows: {}) for of in (exact, counted)]
        assert new[0] == new[1]
        assert (len(exact), exact.known) == (len(counted), counted.known)
        found = exact.entries().sorted()
        expected = arrays_of(found.where(found.admitted))
        told = entries_of(counted)
        assert {name: told[name] for name in expected} == expected
    assert 0 < len(counted) < counted.known


@pytest.mark.parametrize("error", [0.3, 0.1, 0.01, 0.001])
def test_the_share_of_ids_that_are_counted_too_high_is_within_the_bound(error: float) -> None:
    random = np.random.default_rng(2)
    size = 40_000
    ids = np.unique(random.integers(-(2**62), 2**62, 3 * size))
    random.shuffle(ids)
    of = table(CountingBloom(size, error), min_count=2)
    of.count(np.sort(ids[:size]), np.ones(size, np.int64), 0, lambda rows: {})
    assert len(of) == 0  # all at once: nothing was there before
    before = of.entries()
    wrong = 0
    for part in np.array_split(np.sort(ids[size:]), 40):  # each begins with what was there
        of.put(before)
        wrong += of.count(part, np.ones(len(part), np.int64), 1, lambda rows: {})
    found = wrong / (len(ids) - size)
    assert found <= error * 1.05 + 3 * np.sqrt(error / (2 * size))
    assert found >= error / 4  # nor is there room to spare


def test_no_count_is_too_low() -> None:
    exact, counted = table(None, min_count=4), table(SMALL, min_count=4)
    for iteration, (ids, counts) in enumerate(batches()):
        for of in (exact, counted):
            of.count(ids, counts, iteration, lambda rows: {})
        assert np.isin(exact.admitted, counted.admitted).all()
    assert len(counted) > len(exact)  # it is far too small


@pytest.mark.parametrize("counters", [ROOMY, SMALL])
def test_the_number_of_owners_changes_no_bit(counters: CountingBloom) -> None:
    options: dict[str, Any] = {"counters": counters, "max_age": 5, "evict_every": 3}
    steps = batches(steps=24)
    whole = table(**options)
    run(whole, steps)
    parts = [table(**options)]
    for first, ranks in ((0, 3), (8, 1), (16, 5)):
        entries = joined([part.entries() for part in parts])
        parts = [table(**options) for _ in range(ranks)]
        for rank, part in enumerate(parts):
            if first:
                part.put(Entries.read(entries.of_owner(rank, ranks).arrays("x."), "x.", entries.values))
            own = [
                (ids[chosen], counts[chosen])
                for ids, counts in steps[first : first + 8]
                for chosen in [owners(ids, ranks, counters.pages) == rank]
            ]
            run(part, own, first)
    assert arrays_of(joined([part.entries() for part in parts])) == entries_of(whole)
    assert sum(part.known for part in parts) == whole.known


def test_an_owner_has_whole_pages() -> None:
    pages = pages_of(IDS, 100)
    assert set(pages.tolist()) == set(range(100))
    assert (owners(IDS, 7, 100) == owners(pages, 7)).all()


def test_changes_lead_to_the_same_counters() -> None:
    options: dict[str, Any] = {
        "counters": SMALL,
        "min_count": 2,
        "max_age": 4,
        "min_norm": 1.0,
        "evict_every": 3,
    }
    one, other = table(**options), table(**options)
    states = [one.entries().sorted()]
    for iteration, (ids, counts) in enumerate(batches(IDS[:200], 20, 12)):
        gone = one.evict(iteration)
        one.count(ids, counts, iteration, lambda rows: {})
        change = one.changes(ids, gone, iteration)
        assert change.pages is not None
        assert len(change.pages.ids) <= len(ids)
        other.put(change)
        assert entries_of(one) == entries_of(other)
        assert one.known == other.known
        states.append(one.entries().sorted())
    for begin in range(1, 20):
        parts = [states[begin], *(states[n].changed(n - 1) for n in range(begin + 1, 21))]
        assert arrays_of(merged(parts)) == arrays_of(states[-1]), begin
        copy = table(**options)
        for part in parts:
            copy.put(Entries.read(part.arrays("x."), "x.", part.values))
        assert entries_of(copy) == arrays_of(states[-1]), begin
        assert arrays_of(merged([states[begin], one.changed(begin)])) == arrays_of(states[-1]), begin
    assert len(states[-1].gone)


@pytest.mark.parametrize("nbytes", [1, 20_000, 1_000_000])
def test_a_bound_of_memory_changes_no_bit(tmp_path: Path, nbytes: int) -> None:
    options: dict[str, Any] = {"max_age": 6, "evict_every": 3}
    one, other = table(**options), table(memory=RowMemory(nbytes, [str(tmp_path)]), **options)
    for iteration, step in enumerate(batches()):
        for of in (one, other):
            run(of, [step], iteration)
        assert entries_of(one) == entries_of(other)
        if iteration == 5:
            kept = other.entries()
            other = table(memory=RowMemory(nbytes, [str(tmp_path)]), **options)
            other.put(kept)
        assert one.known == other.known


def test_counts_begin_anew_by_age() -> None:
    of = table(max_age=4, evict_every=2)
    for iteration in (0, 3, 4, 7):  # two look-ups of each four iterations
        assert look_up(of, [5], iteration) == 0
    assert look_up(of, [6], 5, times=3) == 1
    assert of.evict(10).tolist() == [6]
    assert look_up(of, [6], 10, times=2) == 0  # as for an id that is new
    assert look_up(of, [6], 11) == 1


def test_without_an_age_an_evicted_id_keeps_its_count() -> None:
    of = table(min_norm=1e9, evict_every=2)
    assert look_up(of, [6], 0, times=3) == 1
    assert of.evict(2).tolist() == [6]
    assert look_up(of, [6], 2) == 1


def test_look_ups_that_nothing_is_known_of_are_not_hot() -> None:
    of = table()
    found = []
    for iteration in range(4):
        look_up(of, [5], iteration)
        found.append(of.hot)
    assert found == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("least", "dtype"), [(2, "uint8"), (255, "uint8"), (256, "uint16"), (70_000, "uint32")]
)
def test_counters_are_as_wide_as_they_must_be(least: int, dtype: str) -> None:
    of = table(min_count=least)
    assert look_up(of, [1, 2], 0, times=least - 1) == 0
    pages = of.entries().pages
    assert pages is not None
    assert {values.dtype.name for values in pages.columns.values()} == {dtype}
    assert look_up(of, [2], 1) == 1


def test_a_fit_that_begins_keeps_the_counts() -> None:
    of, copy = table(), table()
    look_up(of, [1], 7, times=2)
    copy.put(of.entries().without_state())
    assert look_up(copy, [1], 0) == 1


def held(counters: CountingBloom | None, ids: Any) -> float:
    """Return the bytes of memory for each of some ids, which are met once."""
    tracemalloc.start()
    try:
        of = table(counters)
        for iteration, part in enumerate(np.array_split(ids, 20)):
            look_up(of, part, iteration)
        assert len(of) == 0
        return tracemalloc.get_traced_memory()[0] / len(ids)
    finally:
        tracemalloc.stop()


def test_ids_that_wait_take_less_memory() -> None:
    ids = np.unique(np.random.default_rng(3).integers(-(2**62), 2**62, 130_000))
    exact, counted = (held(counters, ids) for counters in (None, CountingBloom(len(ids))))
    assert exact > 40
    assert counted < exact / 2


@pytest.mark.parametrize(
    "options",
    [{"max_ids": 0}, {"max_ids": 1.5}, {"max_ids": True}, {"error": 0}, {"error": 0.9}, {"error": "low"}],
)
def test_an_argument_that_cannot_work_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        CountingBloom(**{"max_ids": 10} | options)
