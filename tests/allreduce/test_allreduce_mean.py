import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.data import read_only

from sparkdl.allreduce.update import combine as combining
from sparkdl.allreduce.update.combine import NonFiniteMeanError, WeightedPart, weighted_drift, weighted_mean
from sparkdl.wire.held import Owned, Shared


def part_of(source, weight, values):
    """A part that may be overwritten where its memory may."""
    return WeightedPart(source, weight, Owned(values) if values.flags.writeable else Shared(values))


VALUES = st.floats(-1e6, 1e6, width=32)
WEIGHTS = st.integers(1, 10**6).map(float) | st.floats(0.125, 1000)


COMBINE = {
    "mean": lambda parts: weighted_mean([part_of(p.source, p.weight, read_only(p.array)) for p in parts]),
    "drift": lambda parts: weighted_drift(parts),
}


@st.composite
def parts(draw, dtype="float32"):
    size, count = draw(st.integers(1, 20)), draw(st.integers(1, 8))
    sources = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count, unique=True))
    return [part_of(s, draw(WEIGHTS), draw(hnp.arrays(dtype, size, elements=VALUES))) for s in sources]


def reference(parts):
    """Return the mean in float64, and the mean of the magnitudes as the scale of rounding errors."""
    weights = [p.weight for p in parts]
    values = [p.array.astype(np.float64) for p in parts]
    return np.average(values, axis=0, weights=weights), np.max(np.abs(values), axis=0)


@pytest.mark.parametrize("combine", COMBINE.values(), ids=COMBINE)
@settings(deadline=None, max_examples=100)
@given(parts=parts())
def test_close_to_the_mean_in_double_precision(combine, parts):
    expected, scale = reference(parts)
    found = combine(parts)
    assert found.dtype == np.float32
    assert (np.abs(found - expected) <= scale * 4 * (len(parts) + 1) * np.finfo(np.float32).eps + 1e-30).all()


@pytest.mark.parametrize("combine", COMBINE.values(), ids=COMBINE)
@settings(deadline=None, max_examples=100)
@given(parts=parts(), random=st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_bit(combine, parts, random):
    expected = combine(parts).tobytes()
    shuffled = random.sample(parts, len(parts))
    assert combine(shuffled).tobytes() == expected


@pytest.mark.parametrize("combine", COMBINE.values(), ids=COMBINE)
@settings(deadline=None)
@given(
    values=hnp.arrays("float32", 5, elements=st.floats(width=32)),
    weight=WEIGHTS,
)
def test_a_single_part_is_returned_bit_for_bit_as_a_fresh_array(combine, values, weight):
    if combine is COMBINE["mean"] and not np.isfinite(values).all():
        with pytest.raises(NonFiniteMeanError):
            combine([part_of(3, weight, values)])
        return
    found = combine([part_of(3, weight, values)])
    assert found.tobytes() == values.tobytes()
    assert not np.shares_memory(found, values)
    assert found.flags.writeable


@settings(deadline=None)
@given(hnp.arrays("float32", 5, elements=VALUES), st.lists(WEIGHTS, min_size=1, max_size=6))
def test_equal_buffers_stay_equal_to_the_bit(values, weights):
    found = weighted_drift([part_of(i, w, values) for i, w in enumerate(weights)])
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_equal_infinite_buffers_stay_infinite(value):
    mask = np.array([value, 0.0], np.float32)
    found = weighted_drift([part_of(0, 1.0, mask), part_of(1, 3.0, mask)])
    np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_keep_the_dtype_and_the_parts(dtype):
    values = np.array([1, 2], dtype)
    values.flags.writeable = False
    for combine in COMBINE.values():
        found = combine([part_of(1, 1.0, values), part_of(0, 3.0, values * 5)])
        assert found.dtype == dtype
        np.testing.assert_allclose(found, [4, 8])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 4, 5, 22])
@pytest.mark.parametrize("writable", [True, False])
def test_an_infinite_or_nan_gradient_is_not_hidden(monkeypatch, bad, place, writable):
    monkeypatch.setattr(combining, "_BLOCK", 5)
    sources = [np.ones(23, np.float32) for _ in range(3)]
    sources[1][place:] = bad
    for values in sources:
        values.flags.writeable = writable
    with pytest.raises(NonFiniteMeanError) as caught:
        weighted_mean([part_of(n, 1.0, values) for n, values in enumerate(sources)])
    assert (caught.value.index, caught.value.sources) == (place, [1])


def test_numbers_with_too_large_a_sum_are_numbers():
    large = np.full(3, 3e38, np.float32)
    np.testing.assert_array_equal(weighted_mean([part_of(0, 1.0, large), part_of(1, 1.0, large)]), large)


@pytest.mark.parametrize("writable", range(8))
@pytest.mark.parametrize("count", [1, 3])
def test_the_mean_takes_the_memory_of_what_may_be_overwritten(monkeypatch, writable, count):
    monkeypatch.setattr(combining, "_BLOCK", 5)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(23).astype(np.float32) for _ in range(count)]
    fresh = COMBINE["mean"]([part_of(n, float(n + 1), own) for n, own in enumerate(values)])
    before = [own.copy() for own in values]
    sources = [
        WeightedPart(n, float(n + 1), Owned(own) if writable >> n & 1 else Shared(own))
        for n, own in enumerate(values)
    ]
    found = weighted_mean(sources)
    np.testing.assert_array_equal(found, fresh)
    taken = next((n for n in range(count) if writable >> n & 1), None)
    for n, part in enumerate(sources):
        assert np.shares_memory(found, part.array) is (n == taken)
        if n != taken:
            np.testing.assert_array_equal(part.array, before[n])


def test_more_numbers_than_a_block_has_are_summed_alike(monkeypatch):
    rng = np.random.default_rng(0)
    values = [read_only(rng.standard_normal(23).astype(np.float32)) for _ in range(3)]
    sources = [part_of(n, float(n + 1), own) for n, own in enumerate(values)]
    whole = weighted_mean(sources)
    monkeypatch.setattr(combining, "_BLOCK", 5)
    np.testing.assert_array_equal(weighted_mean(sources), whole)
    assert not np.shares_memory(whole, sources[0].values)
