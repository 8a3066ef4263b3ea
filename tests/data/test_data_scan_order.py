"""The order of a scan's rows: every row once in an epoch, in batches that no number of partitions changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.scan.order import ScanLayout, in_files, order_of
from sparkdl.data.streams import FROM_THE_BEGINNING, Since

GROUPS = st.lists(st.integers(0, 90), min_size=1, max_size=30).filter(lambda groups: sum(groups) > 0)
CASE = {
    "groups": GROUPS,
    "streams": st.integers(1, 40),
    "window": st.integers(1, 60),
    "seed": st.integers(0, 2**64),
    "epoch": st.integers(0, 5),
}


@settings(deadline=None, max_examples=60)
@given(**CASE, batch_size=st.integers(1, 120), shuffle=st.booleans())
def test_every_row_once_in_batches_of_the_stated_sizes(
    groups, streams, window, seed, epoch, batch_size, shuffle
):
    layout = ScanLayout(np.array(groups), streams, window)
    steps = -(-layout.rows // batch_size)
    order = order_of(layout, seed, epoch) if shuffle else in_files(layout)
    slots = [FROM_THE_BEGINNING.slots(layout.rows, steps, t) for t in range(steps)]
    one = [order.numbers(order.parts(taken, 0, 1)) for taken in slots]
    visited = np.concatenate(one)
    assert sorted(visited.tolist()) == list(range(layout.rows))
    if not shuffle:
        assert visited.tolist() == list(range(layout.rows))
    bounds = [t * layout.rows // steps for t in range(steps + 1)]
    assert [len(batch) for batch in one] == [hi - lo for lo, hi in pairwise(bounds)]
    # In reverse, by an order that knows nothing yet: any batch is found without those before it.
    fresh = order_of(layout, seed, epoch) if shuffle else in_files(layout)
    for number in reversed(range(steps)):
        np.testing.assert_array_equal(fresh.numbers(fresh.parts(slots[number], 0, 1)), one[number])
    for ranks in (2, 3, 7):
        for number in range(steps):
            found = [order.numbers(order.parts(slots[number], rank, ranks)) for rank in range(ranks)]
            assert sorted(np.concatenate(found).tolist()) == sorted(one[number].tolist())


@settings(deadline=None, max_examples=60)
@given(**CASE, data=st.data())
def test_an_epoch_may_change_its_batch_size_on_its_way(groups, streams, window, seed, epoch, data):
    layout = ScanLayout(np.array(groups), streams, window)
    order = order_of(layout, seed, epoch)
    first = data.draw(st.integers(0, layout.rows))
    steps = data.draw(st.integers(1, 20))
    since = Since(3, first)
    slots = [(0, first), *(since.slots(layout.rows, 3 + steps, 3 + t) for t in range(steps))]
    visited = np.concatenate([order.numbers(order.parts(taken, 0, 1)) for taken in slots])
    assert sorted(visited.tolist()) == list(range(layout.rows))


@settings(deadline=None, max_examples=60)
@given(**CASE)
def test_streams_have_whole_groups_and_chunks_are_bounded(groups, streams, window, seed, epoch):
    layout = ScanLayout(np.array(groups), streams, window)
    order = order_of(layout, seed, epoch)
    ends = np.cumsum(layout.groups)
    seen = []
    for stream in range(streams):
        for chunk in range(order.chunks(stream)):
            spans = order.spans(stream, chunk)
            assert 0 < sum(span.rows for span in spans) == order.rows(stream, chunk) <= window
            if 0 < chunk < order.chunks(stream) - 1:
                assert order.rows(stream, chunk) == window
            seen += [(*span, stream) for span in spans]
    assert sum(rows for _, rows, _ in seen) == layout.rows
    streams_of: dict[int, set[int]] = {}
    for first, rows, stream in seen:  # no span leaves its group, and a small group is of one stream
        group = int(np.searchsorted(ends, first, side="right"))
        assert first + rows <= ends[group]
        streams_of.setdefault(group, set()).add(stream)
    for group, found in streams_of.items():
        assert len(found) == 1 or groups[group] > layout.rows / (4 * streams)


def test_streams_are_even_and_so_are_shares_of_batches():
    generator = np.random.default_rng(0)
    layout = ScanLayout(generator.integers(500, 1500, 400), 24, 4000)
    order = order_of(layout, 1, 0)
    assert np.ptp(order.lengths) < 0.1 * order.lengths.mean()
    steps = layout.rows // 960
    for t in (0, 1, 7, steps - 1):
        slots = FROM_THE_BEGINNING.slots(layout.rows, steps, t)
        per_stream = order.before(slots[1]) - order.before(slots[0])
        assert per_stream.sum() == slots[1] - slots[0]
        assert np.abs(per_stream - per_stream.mean()).max() < 4


def test_epochs_and_seeds_have_orders_of_their_own():
    layout = ScanLayout(np.full(64, 50), 12, 120)
    orders = [order_of(layout, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    first = [order.numbers(order.parts((0, 640), 0, 1)) for order in orders]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    # The beginning of an epoch comes from groups of all streams.
    assert len(np.unique(first[0] // 50)) >= 12


@pytest.mark.parametrize("streams", [1, 12, 840])
def test_a_large_table_is_dealt_quickly_and_any_place_is_found(streams):
    layout = ScanLayout(np.full(20_000, 10_000), streams, 25_000)
    order = order_of(layout, 3, 2)
    slots = (123_456_789, 123_457_813)
    parts = order.parts(slots, 0, 1)
    assert sum(part.end - part.first for part in parts) == 1024
    assert len({(part.stream, part.chunk) for part in parts}) <= 2 * streams
