from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.allreduce.update import adasum
from sparkdl.allreduce.update.combine import WeightedPart
from sparkdl.wire.held import Shared
from sparkdl.wire.layout import ParamLayout, lay_out

LAYOUT = ParamLayout(lay_out([("a", (3, 4), 0), ("b", (), 0), ("none", (0,), 0), ("c", (9,), 0)]))
SHARDS = [1, 3]


def run(gradients, count, layout=LAYOUT):
    """Adasum in shards, as the tasks and the driver do it."""
    grams, jobs = [], []
    for lo, hi in layout.shards(count):
        parts = [WeightedPart(i, 1.0, Shared(g[lo:hi])) for i, g in enumerate(gradients)]
        grams.append(adasum.gram_partials(parts, layout, lo, hi))
        jobs.append((parts, lo, hi))
    factors = adasum.coefficients(np.sum(grams, axis=0))
    return np.concatenate([adasum.combine(parts, factors, layout, lo, hi) for parts, lo, hi in jobs])


def adasum_of_two(a, b):
    product, square_a, square_b = a @ b, a @ a, b @ b
    share_a = product / (2 * square_a) if square_a else 0.0
    share_b = product / (2 * square_b) if square_b else 0.0
    return (1 - share_a) * a + (1 - share_b) * b


def recursive(vectors):
    if len(vectors) == 1:
        return vectors[0]
    pairs = [adasum_of_two(*vectors[i : i + 2]) for i in range(0, len(vectors) - 1, 2)]
    return recursive(pairs + vectors[2 * len(pairs) :])


def reference(gradients, layout=LAYOUT):
    """Adasum of each parameter, directly and in double precision."""
    result = np.zeros(layout.numel)
    for spec in layout.params:
        own = [g[spec.offset : spec.end].astype(np.float64) for g in gradients]
        result[spec.offset : spec.end] = recursive(own)
    return result


def draw(sources, dtype="float32", seed=0):
    generator = np.random.default_rng(seed)
    common = generator.normal(size=LAYOUT.numel)
    return [(common + generator.normal(size=LAYOUT.numel)).astype(dtype) for _ in range(sources)]


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("sources", range(1, 8))
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-12)])
def test_as_a_direct_recursion_on_whole_vectors(sources, count, dtype, rtol):
    gradients = draw(sources, dtype)
    found = run(gradients, count)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, reference(gradients), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("count", SHARDS)
def test_a_single_source_is_returned_bit_for_bit_as_a_fresh_array(count):
    (gradient,) = draw(1)
    found = run([gradient], count)
    assert found.tobytes() == gradient.tobytes()
    assert not np.shares_memory(found, gradient)


def test_orthogonal_gradients_are_added_and_parallel_ones_averaged():
    layout = ParamLayout(lay_out([("p", (2,), 0)]))
    a, b = np.array([3.0, 0.0]), np.array([0.0, 5.0])
    assert run([a, b], 1, layout).tolist() == [3, 5]
    assert run([a, a, a], 1, layout).tolist() == [3, 0]
    assert run([a, 3 * a], 1, layout).tolist() == [(1 - 1.5) * 3 + (1 - 1 / 6) * 9, 0]


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("sources", [2, 3, 5])
def test_zero_gradients_add_nothing(sources, count):
    (gradient,) = draw(1)
    zero = np.zeros_like(gradient)
    for place in range(sources):
        gradients = [zero] * sources
        gradients[place] = gradient
        np.testing.assert_array_equal(run(gradients, count), gradient)
    assert not run([zero] * sources, count).any()


@pytest.mark.parametrize("count", SHARDS)
def test_gradients_that_cancel_out_leave_the_others(count):
    a, b, c = draw(3)
    np.testing.assert_allclose(run([a, -a, b, c], count), reference([b, c]), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.floats(1e-10, 1e10))
def test_scaling_the_gradients_scales_the_result_and_norms_are_bounded(seed, sources, scale):
    gradients = draw(sources, "float64", seed)
    found = run(gradients, 1)
    scaled = run([g * scale for g in gradients], 1)
    np.testing.assert_allclose(scaled, found * scale, rtol=1e-9, atol=1e-9 * scale)


def test_each_parameter_is_combined_alone():
    first, second = draw(2)
    together = run([first, second], 1)
    for spec in LAYOUT.params:
        own = ParamLayout(lay_out([(spec.name, spec.shape, 0)]))
        where = slice(spec.offset, spec.end)
        if spec.numel:
            np.testing.assert_array_equal(run([first[where], second[where]], 1, own), together[where])


def test_long_vectors_go_in_blocks(monkeypatch):
    gradients = draw(3, "float64")
    expected = run(gradients, 1)
    monkeypatch.setattr(adasum, "_BLOCK", 5)
    np.testing.assert_allclose(run(gradients, 1), expected, rtol=1e-12)


def test_shapes_also_of_a_shard_without_elements():
    parts = [WeightedPart(i, 1.0, Shared(np.zeros(0, np.float32))) for i in range(3)]
    gram = adasum.gram_partials(parts, LAYOUT, LAYOUT.numel, LAYOUT.numel)
    assert gram.shape == (4, 3, 3)
    assert gram.dtype == np.float64
    factors = adasum.coefficients(gram)
    assert factors.shape == (4, 3)
    assert adasum.combine(parts, factors, LAYOUT, LAYOUT.numel, LAYOUT.numel).shape == (0,)


def test_a_cut_inside_of_a_parameter_changes_rounding_only():
    gradients = draw(4)
    cuts = (0, 1, 5, 11, 22)
    grams = [
        adasum.gram_partials(
            [WeightedPart(i, 1.0, Shared(g[lo:hi])) for i, g in enumerate(gradients)], LAYOUT, lo, hi
        )
        for lo, hi in pairwise(cuts)
    ]
    whole = [WeightedPart(i, 1.0, Shared(g)) for i, g in enumerate(gradients)]
    np.testing.assert_allclose(sum(grams), adasum.gram_partials(whole, LAYOUT, 0, 22), rtol=1e-12)
