import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.allreduce.plans.driver import MAX_SHARD_BYTES, count_shards
from sparkdl.wire.layout import ParamLayout, lay_out


def of(numel, *uncut):
    return ParamLayout(lay_out([("p", (numel,), 0)]), uncut=uncut)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**12), st.integers(1, 300))
def test_bounds_cover_the_vector_in_order_and_the_first_are_longer(numel, count):
    found = of(numel).shards(count)
    assert len(found) == count
    assert found[0][0] == 0
    assert found[-1][1] == numel
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    sizes = [hi - lo for lo, hi in found]
    longer = numel % count
    assert sizes == [numel // count + 1] * longer + [numel // count] * (count - longer)


@pytest.mark.parametrize(
    ("numel", "count", "expected"),
    [(7, 3, [(0, 3), (3, 5), (5, 7)]), (2, 3, [(0, 1), (1, 2), (2, 2)]), (4, 1, [(0, 4)])],
)
def test_bounds(numel, count, expected):
    assert of(numel).shards(count) == expected


def test_bounds_move_out_of_stretches_that_may_not_be_cut():
    assert of(12, (0, 5), (5, 6), (6, 12)).shards(3) == [(0, 5), (5, 6), (6, 12)]
    assert of(12, (1, 11)).shards(3) == [(0, 1), (1, 11), (11, 12)]
    assert of(12, (0, 12)).shards(3) == [(0, 0), (0, 12), (12, 12)]
    assert of(12, (0, 12)).largest_shard(3) == 48
    assert of(12).largest_shard(3) == 16


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 20))
def test_no_stretch_is_cut(sizes, count):
    ends = list(itertools.accumulate([0, *sizes]))
    uncut = [pair for pair in itertools.pairwise(ends) if pair[0] < pair[1]][::2]
    found = of(ends[-1], *uncut).shards(count)
    assert [found[0][0], found[-1][1], len(found)] == [0, ends[-1], count]
    assert all(a[1] == b[0] and a[0] <= a[1] for a, b in itertools.pairwise(found))
    assert not any(start < border < stop for border, _ in found for start, stop in uncut)


@pytest.mark.parametrize(
    ("numel", "partitions", "dtype", "count"),
    [
        (1000, 4, "float32", 4),
        (3, 4, "float32", 3),
        (1 << 24, 1, "float32", 1),
        ((1 << 24) + 1, 1, "float32", 2),
        (1 << 24, 1, "float64", 2),
        (10 << 24, 16, "float32", 16),
    ],
)
def test_one_shard_per_partition_unless_it_is_too_large_or_empty(numel, partitions, dtype, count):
    layout = ParamLayout(lay_out([("p", (numel,), 0)]), dtype=dtype)
    assert count_shards(layout, partitions, None, 0) == count
    largest = max(hi - lo for lo, hi in layout.shards(count))
    assert largest * layout.itemsize <= MAX_SHARD_BYTES
