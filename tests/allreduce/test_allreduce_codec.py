"""Fewer bytes, and errors within the formats' bounds."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.allreduce.plan import gradient_shards
from sparkdl.exceptions import ConfigError
from sparkdl.nn.gradient import Gradient
from sparkdl.wire import frame
from sparkdl.wire.codec import Int8, TopK, codec_of, decode, encode, has_error_feedback
from sparkdl.wire.held import Shared
from sparkdl.wire.layout import ParamLayout, lay_out

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)
VALUES = arrays.arrays(np.float32, st.integers(0, 40), elements=FLOATS)
HALF = ("bf16", "fp16")
CODECS = ("fp32", *HALF, Int8(), TopK())
PRECISION = {"bf16": 2.0**-8, "fp16": 2.0**-11}
SMALLEST = np.finfo(np.float32).tiny


def there_and_back(codec: Any, values: Any) -> Any:
    encoded = encode(codec, values)
    json.dumps(encoded.meta)
    return decode(encoded.meta, encoded.arrays, values.dtype)


@given(VALUES)
def test_fp32_is_exact(values: Any) -> None:
    np.testing.assert_array_equal(there_and_back("fp32", values), values)


@given(VALUES)
def test_bf16_errs_by_half_a_unit_in_the_last_place(values: Any) -> None:
    found = there_and_back("bf16", values)
    bound = np.maximum(np.abs(values) * PRECISION["bf16"], SMALLEST * 2.0**-8)
    assert (np.abs(found - values) <= bound).all()


@given(
    arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-1, 1, width=32)),
    st.one_of(st.integers(-149, -80), st.integers(-80, 127)),
    st.sampled_from([np.float32, np.float64]),
)
def test_fp16_errs_by_half_a_unit_or_a_share_of_the_largest(values: Any, exponent: int, dtype: Any) -> None:
    """Small gradients, too: below 2**-86 more and more was lost, and all below 2**-125."""
    values = np.ldexp(values.astype(dtype), exponent if dtype is np.float32 else 6 * exponent)
    found = there_and_back("fp16", values).astype(np.float64)
    largest = np.abs(values).max(initial=0)
    # Denormal numbers of fp16 lie 2**-24 apart; the largest value is scaled to 2**14 and more.
    bound = np.maximum(np.abs(values.astype(np.float64)) * PRECISION["fp16"], largest * 2.0**-39)
    assert (np.abs(found - values) <= np.maximum(bound, 2.0**-150 if dtype is np.float32 else 0)).all()


def test_fp16_holds_large_numbers_of_float64() -> None:
    np.testing.assert_array_equal(there_and_back("fp16", np.array([2.0**300, 1.5])), [2.0**300, 0])


@given(VALUES, st.integers(1, 50))
def test_int8_errs_by_half_a_scale_of_the_block(values: Any, block: int) -> None:
    found = there_and_back(Int8(block), values).astype(np.float64)
    for start in range(0, len(values), block):
        own = values[start : start + block].astype(np.float64)
        bound = np.abs(own).max() / 254 * (1 + 1e-6) + SMALLEST
        assert (np.abs(found[start : start + block] - own) <= bound).all()


@given(
    arrays.arrays(np.float64, st.integers(0, 40), elements=st.floats(-1, 1)),
    st.lists(st.integers(-900, 120), min_size=10, max_size=10),
)
def test_int8_of_float64_holds_small_gradients_as_exactly_as_large_ones(values: Any, exponents: Any) -> None:
    """A scale of float32 had few digits below 2**-126, and was 0 below 2**-150."""
    blocks = np.arange(len(values)) // 4
    values = np.ldexp(values, np.array(exponents)[blocks])
    found = there_and_back(Int8(4), values)
    for block in range(len(values) // 4 + 1):
        own = values[blocks == block]
        # the least number of float64 limits what is smaller than all of these scales
        bound = np.abs(own).max(initial=0) / 254 * (1 + 1e-6) + 2.0**-1066
        assert (np.abs(found[blocks == block] - own) <= bound).all()
        if np.abs(own).max(initial=0) > 2.0**-100:  # as if no others were there
            np.testing.assert_array_equal(found[blocks == block], there_and_back(Int8(4), own))


@given(VALUES, st.floats(0.01, 1.0))
def test_top_k_sends_the_largest_as_they_are(values: Any, fraction: float) -> None:
    found = there_and_back(TopK(fraction), values)
    sent = found != 0
    assert (found[sent] == values[sent]).all()
    count = max(1, math.ceil(fraction * len(values)))
    assert sent.sum() <= count
    missed = np.abs(values[~sent]).max(initial=0)
    assert (np.abs(values[sent]) >= missed).all()
    assert sent.sum() == min(count, np.count_nonzero(values))


@given(
    st.lists(arrays.arrays(np.float32, 30, elements=st.floats(-8, 8, width=32)), min_size=1, max_size=6),
    st.sampled_from([Int8(7), TopK(0.1)]),
)
def test_with_error_feedback_only_the_last_residual_is_missing(gradients: Any, codec: Any) -> None:
    sent, residual = np.zeros(30), np.zeros(30, np.float32)
    for gradient in gradients:
        wanted = gradient + residual
        arrived = there_and_back(codec, wanted)
        residual = wanted - arrived
        sent += arrived
    np.testing.assert_allclose(sent + residual, np.sum(gradients, 0, np.float64), atol=1e-4)


@given(VALUES, st.sampled_from(CODECS))
def test_signs_zeros_and_sizes(values: Any, codec: Any) -> None:
    encoded = encode(codec, values)
    found = decode(encoded.meta, encoded.arrays, values.dtype)
    assert found.dtype == values.dtype
    size = sum(array.nbytes for array in encoded.arrays.values())
    if codec in HALF:
        assert size == values.nbytes // 2
    elif codec == Int8():
        assert size == len(values) + 4 * -(-len(values) // 256)
    elif codec == TopK():
        assert size == (8 if len(values) else 0)
    assert (found[values == 0] == 0).all()
    assert (found * np.sign(values) >= 0).all()


@pytest.mark.parametrize("codec", [*CODECS, TopK(1.0), TopK(0.5)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(codec: Any, bad: float) -> None:
    values = np.array([1.0, bad, -2.0], np.float32)
    np.testing.assert_array_equal(there_and_back(codec, values), values)


@pytest.mark.parametrize("codec", ["bf16", "fp16"])
def test_double_precision(codec: Any) -> None:
    values = np.linspace(-1, 1, 101)
    found = there_and_back(codec, values)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, values, rtol=PRECISION[codec], atol=1e-9)


def test_ties_go_to_even() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert there_and_back("bf16", values).tolist() == [1.0, 1 + 2**-6]


def test_names_and_options() -> None:
    assert codec_of("int8") == Int8()
    assert codec_of("bf16") == "bf16"
    assert [has_error_feedback(codec_of(c)) for c in ("fp32", "int8")] == [False, True]
    assert not has_error_feedback(TopK(0.1, error_feedback=False))
    for bad in ("int4", 8, None, TopK):
        with pytest.raises(ConfigError, match="expected one of 'fp32', 'bf16', 'fp16', 'int8', or Int8"):
            codec_of(bad)
    for fraction in (0, 1.1, "much", float("nan")):
        with pytest.raises(ConfigError, match="TopK: fraction"):
            TopK(fraction)  # type: ignore[arg-type]
    for block in (0, 1.5, True):
        with pytest.raises(ConfigError, match="Int8: block"):
            Int8(block)


@pytest.mark.parametrize("bounds", [[(0, 8)], [(0, 4), (4, 8)]])
def test_what_is_left_out_waits_for_the_next_gradient_of_its_parameter(bounds: Any) -> None:
    layout = ParamLayout(lay_out([("first", (4,), 0), ("second", (4,), 0)]))
    codec = TopK(1 / 8)  # one value of 8, or of 4
    spec = SimpleNamespace(layout=layout, gradient_codec=codec, error_feedback=True, scanned=())
    worker = SimpleNamespace(spec=spec, replica=SimpleNamespace(on_host=lambda values: values.numpy()))
    me = SimpleNamespace(worker=worker, rank=0)
    written: list[Any] = []
    state = SimpleNamespace(write=lambda frames: written.extend(frames))
    forward = SimpleNamespace(state_of=lambda *_: state)
    left, before = np.zeros((2, 4), np.float32), None
    for step, gradient in enumerate(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)):
        turn = step % 2
        values = torch.zeros(8)
        values[4 * turn : 4 * turn + 4] = torch.from_numpy(gradient)
        used = np.arange(2) == turn
        contribution = SimpleNamespace(gradient=Gradient(values, used, {}, 1.0), before=before, own_state=())
        shards = list(gradient_shards(me, forward, contribution, bounds))
        sent = np.concatenate(
            [shard.values(layout, *bound).value for shard, bound in zip(shards, bounds, strict=True)]
        )
        before = {"residual": Shared(frame.unpack(frame.join(written.pop())))}
        left[turn] += gradient
        largest = np.abs(left[turn]).argmax()
        expected = np.zeros((2, 4), np.float32)
        expected[turn, largest], left[turn, largest] = left[turn, largest], 0
        np.testing.assert_array_equal(sent, expected.reshape(-1))
        np.testing.assert_array_equal(before["residual"].value.arrays["left_out"], left.reshape(-1))
