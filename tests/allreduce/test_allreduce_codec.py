"""Half as many bytes, and errors within the formats' bounds."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.allreduce.codec import CODECS, decode, encode

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)
VALUES = arrays.arrays(np.float32, st.integers(0, 40), elements=FLOATS)
PRECISION = {"bf16": 2.0**-8, "fp16": 2.0**-11}
SMALLEST = np.finfo(np.float32).tiny


def there_and_back(codec: Any, values: Any) -> Any:
    encoded, factor = encode(codec, values)
    return decode(codec, encoded, factor, values.dtype)


@given(VALUES)
def test_fp32_is_exact(values: Any) -> None:
    np.testing.assert_array_equal(there_and_back("fp32", values), values)


@given(VALUES)
def test_bf16_errs_by_half_a_unit_in_the_last_place(values: Any) -> None:
    found = there_and_back("bf16", values)
    bound = np.maximum(np.abs(values) * PRECISION["bf16"], SMALLEST * 2.0**-8)
    assert (np.abs(found - values) <= bound).all()


@given(VALUES)
def test_fp16_errs_by_half_a_unit_or_a_share_of_the_largest(values: Any) -> None:
    found = there_and_back("fp16", values).astype(np.float64)
    largest = np.abs(values).max(initial=0)
    # Denormal numbers of fp16 lie 2**-24 apart; the largest value is scaled to 2**14 and more.
    bound = np.maximum(np.abs(values.astype(np.float64)) * PRECISION["fp16"], largest * 2.0**-39)
    assert (np.abs(found - values) <= np.maximum(bound, 2.0**-124)).all()


@given(VALUES, st.sampled_from(CODECS))
def test_signs_zeros_and_sizes(values: Any, codec: Any) -> None:
    encoded, factor = encode(codec, values)
    found = decode(codec, encoded, factor, values.dtype)
    assert found.dtype == values.dtype
    assert encoded.nbytes == values.nbytes // (1 if codec == "fp32" else 2)
    assert (found[values == 0] == 0).all()
    assert (found * np.sign(values) >= 0).all()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(codec: Any, bad: float) -> None:
    found = there_and_back(codec, np.array([1.0, bad, -2.0], np.float32))
    np.testing.assert_array_equal(found, np.array([1.0, bad, -2.0], np.float32))


@pytest.mark.parametrize("codec", ["bf16", "fp16"])
def test_double_precision(codec: Any) -> None:
    values = np.linspace(-1, 1, 101)
    found = there_and_back(codec, values)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, values, rtol=PRECISION[codec], atol=1e-9)


def test_ties_go_to_even() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert there_and_back("bf16", values).tolist() == [1.0, 1 + 2**-6]
