import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data import sampler

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)
SEED = st.integers(0, 2**64)


def epoch_of(counts, batch_size, *, seed=0, epoch=0, shuffle=True):
    """Rows per (partition, iteration)."""
    steps = sampler.iterations_per_epoch(sum(counts), batch_size)
    return [
        [
            sampler.rows_of(n, steps, t, seed=seed, epoch=epoch, partition=p, shuffle=shuffle)
            for t in range(steps)
        ]
        for p, n in enumerate(counts)
    ]


@settings(deadline=None, max_examples=150)
@given(COUNTS, st.integers(1, 500), SEED, st.integers(0, 5), st.booleans())
def test_an_epoch_visits_every_row_exactly_once(counts, batch_size, seed, epoch, shuffle):
    taken = epoch_of(counts, batch_size, seed=seed, epoch=epoch, shuffle=shuffle)
    for n, rows in zip(counts, taken, strict=True):
        visited = np.concatenate(rows)
        assert sorted(visited.tolist()) == list(range(n))
        if not shuffle:
            assert visited.tolist() == list(range(n))


@settings(deadline=None, max_examples=150)
@given(COUNTS, st.integers(1, 500))
def test_iterations_follow_the_floor_formula(counts, batch_size):
    total = sum(counts)
    steps = sampler.iterations_per_epoch(total, batch_size)
    assert steps == math.ceil(total / batch_size)
    for t in range(steps):
        bounds = [sampler.share(n, steps, t) for n in counts]
        assert bounds == [(t * n // steps, (t + 1) * n // steps) for n in counts]
        size = sampler.global_rows(counts, steps, t)
        assert size == sum(hi - lo for lo, hi in bounds)
        assert abs(size - total / steps) < len(counts)


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"), [(1, 1, 1), (10, 3, 4), (10, 5, 2), (10, 11, 1), (10, 10**9, 1)]
)
def test_iterations_per_epoch(rows, batch_size, steps):
    assert sampler.iterations_per_epoch(rows, batch_size) == steps


def test_bounds_of_huge_partitions_are_exact():
    rows, steps = 3 * 10**18 + 1, 10**9 + 7
    assert sampler.share(rows, steps, steps - 1)[1] == rows
    assert sampler.share(rows, steps, 5)[1] == sampler.share(rows, steps, 6)[0]


@settings(deadline=None)
@given(st.integers(0, 200), SEED, st.integers(0, 1000), st.integers(0, 1000))
def test_a_permutation_is_one_and_cannot_be_changed(rows, seed, epoch, partition):
    order = sampler.permutation(rows, seed, epoch, partition)
    assert sorted(order.tolist()) == list(range(rows))
    with pytest.raises(ValueError, match="read-only"):
        order[...] = 0


def test_order_depends_on_seed_epoch_and_partition_and_on_nothing_else():
    base = sampler.permutation(50, 0, 0, 0).tolist()
    for other in [(50, 1, 0, 0), (50, 0, 1, 0), (50, 0, 0, 1)]:
        assert sampler.permutation(*other).tolist() != base
    sampler._orders._known.clear()
    assert sampler.permutation(50, 0, 0, 0).tolist() == base


def test_a_process_remembers_the_latest_orders_up_to_so_many_bytes(monkeypatch):
    sampler._orders._known.clear()
    monkeypatch.setattr(sampler, "_REMEMBERED", 64 * 50 * 4)
    orders = [sampler.permutation(50, 0, 1, partition) for partition in range(64)]
    assert all(sampler.permutation(50, 0, 1, n) is order for n, order in enumerate(orders))
    sampler.permutation(50, 0, 2, 0)
    sampler.permutation(50, 0, 1, 64)  # in place of the one that was used least lately
    assert len(sampler._orders._known) == 64
    assert sampler.permutation(50, 0, 1, 2) is orders[2]
    assert sampler.permutation(50, 0, 1, 1) is not orders[1]
    large = sampler.permutation(5000, 0, 1, 99)  # alone above the bound
    assert sampler.permutation(5000, 0, 1, 99) is large
    assert len(sampler._orders._known) == 1


def test_the_order_of_rows_stays_what_it_is():
    # Resumed runs and published results depend on it.
    assert sampler.permutation(8, 0, 0, 0).tolist() == [7, 1, 5, 6, 2, 4, 3, 0]


def test_epochs_shuffle_differently_but_take_equal_shares():
    first, second = (epoch_of([40, 13], 8, epoch=epoch) for epoch in (0, 1))
    assert [[len(r) for r in p] for p in first] == [[len(r) for r in p] for p in second]
    assert any(
        a.tolist() != b.tolist()
        for p, q in zip(first, second, strict=True)
        for a, b in zip(p, q, strict=True)
    )


def test_an_empty_partition_takes_part_with_no_rows():
    assert [len(r) for r in epoch_of([0, 10], 5)[0]] == [0, 0]
