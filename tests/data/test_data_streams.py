from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data import sampler
from sparkdl.data.streams import FROM_THE_BEGINNING, STREAMS, Dealt, _shuffled, epoch_of, scrambled
from sparkdl.seeding import ORDER, derive


def batches(rows, batch_size, partitions, *, streams=STREAMS, seed=0, epoch=0, shuffle=True):
    """Rows in the source per (iteration, partition)."""
    steps = sampler.iterations_per_epoch(rows, batch_size)
    dealt = [Dealt(rows, p, partitions, streams) for p in range(partitions)]
    parts = [(d.numbers(), epoch_of(d, seed, epoch, shuffle)) for d in dealt]
    slots = [FROM_THE_BEGINNING.slots(rows, steps, t) for t in range(steps)]
    return [[numbers[part.rows(taken)] for numbers, part in parts] for taken in slots]


CASE = {
    "rows": st.integers(1, 400),
    "batch_size": st.integers(1, 120),
    "streams": st.integers(1, 60),
    "seed": st.integers(0, 2**64),
    "epoch": st.integers(0, 5),
}


DRAWN = given(**CASE, partitions=st.integers(1, 60), shuffle=st.booleans())


@settings(deadline=None, max_examples=80)
@DRAWN
def test_batches_are_the_same_for_every_number_of_partitions(**drawn):
    check_batches(**drawn)


@pytest.mark.whole
@settings(deadline=None, max_examples=200)
@DRAWN
def test_batches_are_the_same_in_more_draws(**drawn):
    check_batches(**drawn)


def check_batches(rows, batch_size, streams, seed, epoch, partitions, shuffle):
    options = {"streams": streams, "seed": seed, "epoch": epoch, "shuffle": shuffle}
    one = [batch for (batch,) in batches(rows, batch_size, 1, **options)]
    many = batches(rows, batch_size, partitions, **options)
    assert [sorted(np.concatenate(b).tolist()) for b in many] == [sorted(b.tolist()) for b in one]
    for batch in many:
        for p, own in enumerate(batch):
            assert (own % streams % partitions == p).all()
    visited = np.concatenate(one)
    assert sorted(visited.tolist()) == list(range(rows))
    if not shuffle:
        assert visited.tolist() == list(range(rows))
    steps = len(one)
    bounds = [t * rows // steps for t in range(steps + 1)]
    assert [len(b) for b in one] == [hi - lo for lo, hi in pairwise(bounds)]


@settings(deadline=None, max_examples=100)
@given(streams=st.integers(1, 900), base=st.integers(0, 2**64 - 1))
def test_streams_come_in_an_order_that_is_even_for_all_divisors(streams, base):
    order = scrambled(streams, np.random.default_rng(base))
    assert sorted(order.tolist()) == list(range(streams))
    for divisor in (n for n in range(1, streams + 1) if streams % n == 0):
        remainders = (order % divisor).reshape(-1, divisor)
        assert (np.sort(remainders, axis=1) == np.arange(divisor)).all()


def test_each_stream_is_at_each_place_equally_often():
    places = np.array([np.argsort(scrambled(60, np.random.default_rng(base))) for base in range(4000)])
    counts = np.array([np.bincount(column, minlength=60) for column in places.T])
    expected = 4000 / 60
    assert ((counts - expected) ** 2 / expected).sum(1).mean() == pytest.approx(59, abs=6)  # chi squared


@pytest.mark.parametrize("partitions", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("rows", [22, 121, 1000, 5000, 25_000, 200_000])
def test_each_partition_has_its_share_of_a_batch(rows, partitions):
    """Rows more or fewer than a share, in the worst batch and in the mean; of few rows for few partitions."""
    few = rows < 300 * partitions
    for batch_size in {7 * partitions, 16 * partitions, min(rows, 1024)}:
        sizes = np.array([[len(own) for own in batch] for batch in batches(rows, batch_size, partitions)])
        excess = abs(sizes - sizes.sum(1, keepdims=True) / partitions)
        assert excess.max() <= (7 if few else 4)
        assert excess.mean() <= (2.2 if few else 0.8)


@pytest.mark.parametrize("rows", [150, 1000, 12_000, 25_000, 50_000, 170_000])
def test_batches_of_sorted_rows_are_as_mixed_as_those_of_a_permutation(rows):
    """Shares of ten classes in batches of 64, beside the deviation of draws without replacement."""
    found, ideal = [], []
    for epoch in range(10_000 // rows + 1):
        for (batch,) in batches(rows, 64, 1, epoch=epoch)[:400]:
            found.append(((np.bincount(batch * 10 // rows, minlength=10) / len(batch) - 0.1) ** 2).mean())
            ideal.append(0.09 / len(batch) * (rows - len(batch)) / (rows - 1))
    assert np.sqrt(np.mean(found) / np.mean(ideal)) == pytest.approx(1, abs=0.12)


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    base = batches(5000, 5000, 1)[0][0]
    assert np.array_equal(base, batches(5000, 5000, 1)[0][0])
    for other in ({"seed": 1}, {"epoch": 1}):
        assert not np.array_equal(base, batches(5000, 5000, 1, **other)[0][0])


def test_rows_come_at_every_place_of_the_epoch():
    """Mean place of each row over many epochs: (N - 1) / 2, with the deviation of uniform places."""
    rows, epochs = 2100, 400
    places = np.zeros((epochs, rows))
    for epoch in range(epochs):
        ((order,),) = batches(rows, rows, 1, epoch=epoch)
        places[epoch, order] = np.arange(rows)
    z = (places.mean(0) - (rows - 1) / 2) / (rows / np.sqrt(12 * epochs))
    assert abs(z).max() < 5
    assert z.std() == pytest.approx(1, abs=0.1)


def test_many_rows_are_sorted_in_pieces(monkeypatch):
    ((whole,),) = batches(9000, 9000, 1)
    monkeypatch.setattr("sparkdl.data.streams._AT_ONCE", 100)
    ((pieces,),) = batches(9000, 9000, 1)
    assert np.array_equal(whole, pieces)


def test_more_partitions_than_streams_have_no_rows():
    sizes = [[len(own) for own in batch] for batch in batches(9, 4, 5, streams=4)]
    assert np.sum(sizes, 0).tolist() == [3, 2, 2, 2, 0]
    assert np.sum(sizes, 1).tolist() == [3, 3, 3]


def splitmix64(base, turn):
    """The number that Vigna's generator draws at a turn, counted from 1."""
    z = (turn * 0x9E3779B97F4A7C15 + base) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize(("rows", "streams"), [(26, 3), (500, 7), (44, 5), (96, 12)])
def test_slots_are_those_of_the_definition(rows, streams):
    base = derive(ORDER, 0, 0)
    drawn = [
        sorted(range(s, rows, streams), key=lambda row: splitmix64(base, row + 1)) for s in range(streams)
    ]
    generator = np.random.Generator(np.random.PCG64(base))
    order = scrambled(streams, generator).tolist()
    short = int(generator.integers(rows // streams + 1))
    rest = _shuffled(rows % streams, generator).tolist()
    slots = []
    for number in range(rows // streams + 1):
        slots += [drawn[s].pop(0) for s in (order if number != short else rest)]
    ((found,),) = batches(rows, rows, 1, streams=streams)
    assert found.tolist() == slots


def test_the_order_of_rows_stays_what_it_is():
    # Resumed runs and published results depend on it.
    ((found,),) = batches(17, 17, 1, streams=2)
    assert found.tolist() == [3, 6, 13, 8, 11, 2, 15, 14, 1, 0, 7, 10, 9, 16, 5, 12, 4]
    ((few,),) = batches(17, 17, 1)
    assert few.tolist() == [11, 0, 5, 10, 7, 16, 1, 8, 13, 14, 15, 4, 9, 12, 3, 2, 6]
