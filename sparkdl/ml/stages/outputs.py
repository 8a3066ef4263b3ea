"""From a module's output to the columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.hf.labels import all_named
from sparkdl.nn.trace import describe
from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Kind = Literal["number", "long", "floats", "doubles", "longs", "raw", "probability", "class", "label"]
VECTORS: tuple[Kind, ...] = ("raw", "probability")
_ARRAYS: Mapping[Kind, str] = {"floats": "float32", "doubles": "float64", "longs": "int64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumn:
    """One column that a transform adds; ConfigError if thresholds are negative or more than one is 0."""

    column: str  # its name
    # ``number`` for a double where the module gives one value per row, ``long`` for an integer, of which a
    # double has not all bits; ``floats``, ``doubles`` or ``longs`` for an array; and of a classifier's
    # logits ``raw`` for an ML vector with one per class, ``probability`` for one of their softmax, and
    # ``class`` for a double, the class with the highest probability, and ``label`` for its name, a string;
    # of logits with NaN they are NaN and null. A single logit z counts as the logits -z and z, with the
    # sigmoid as the second class's probability. Two have their mean subtracted in ``raw``.
    kind: Kind
    key: int | str | None = None  # position or key in the module's output, ``None`` if it is one tensor
    dims: int = 1  # of an array how deeply it is nested; with 1, rows of any shape become flat arrays
    # of ``class``: the class is the one with the highest probability / threshold
    thresholds: tuple[float, ...] | None = None
    metadata: Mapping[str, Any] | None = None  # of the column
    labels: tuple[str, ...] = ()  # of ``label``: the names of the classes

    def __post_init__(self) -> None:
        if self.thresholds is not None:
            check_thresholds(self.thresholds, len(self.thresholds))

    def sql_type(self, *, vectors: bool = True) -> DataType:
        """Return the column's type; with arrays in place of vectors where these cannot be made directly."""
        from pyspark.sql import types as T

        if self.kind in ("number", "class"):
            return T.DoubleType()
        if self.kind == "label":
            return T.StringType()
        if self.kind in VECTORS:
            if not vectors:
                return T.ArrayType(T.DoubleType())
            from pyspark.ml.linalg import VectorUDT

            return VectorUDT()
        if self.kind == "long":
            return T.LongType()
        kinds = {"floats": T.FloatType(), "longs": T.LongType()}
        found: DataType = kinds.get(self.kind, T.DoubleType())
        for _ in range(self.dims):
            found = T.ArrayType(found)
        return found

    def to_arrow(self, values: Array, mask: Array | None = None, *, vectors: bool = True) -> pa.Array:
        """Return the column's values of some rows.

        Raises ModelError for a shape of another kind, ConfigError if thresholds are not as many as classes.
        """
        rows, shape = len(values), values.shape[1:]
        if self.kind in ("number", "long"):
            if prod(shape) != 1:
                raise ModelError(
                    self._unfit(shape, "a column of numbers has one value per row"), code="model-output"
                )
            dtype = np.float64 if self.kind == "number" else np.int64
            return pa.array(values.reshape(rows).astype(dtype, copy=False), mask=mask)
        if self.kind in _ARRAYS:
            if self.dims == 1:
                values = values.reshape(rows, prod(shape))
            elif self.dims != len(shape):
                raise ModelError(self._unfit(shape, f"expected {self.dims} dimensions"), code="model-output")
            return lists(values.astype(_ARRAYS[self.kind], copy=False), mask)
        if len(shape) > 1 or 0 in shape:
            raise ModelError(
                self._unfit(shape, "a classifier gives one logit per class, or a single one"),
                code="model-output",
            )
        logits = values.reshape(rows, prod(shape)).astype(np.float64, copy=False)
        if self.kind in ("class", "label"):
            # Without thresholds the class is that of the highest logit.
            scores = raw_of(logits) if self.thresholds is None else probability_of(logits)
            decided = decide(scores, self.thresholds)
            if self.kind == "class":
                return pa.array(decided, mask=mask)
            none = np.isnan(decided)
            numbers = np.where(none, 0, decided).astype(np.int64)
            return pa.array(all_named(self.labels, scores.shape[1]), pa.string()).take(
                pa.array(numbers, mask=none if mask is None else none | mask)
            )
        values = raw_prediction_of(logits) if self.kind == "raw" else probability_of(logits)
        return _vectors(values, mask) if vectors else lists(values, mask)

    def _unfit(self, shape: tuple[int, ...], expected: str) -> str:
        of = "" if self.key is None else f" for {self.key!r}"
        return f"output column {self.column!r}: the module gives shape {shape} per row{of}; {expected}"


def select(output: Any, key: int | str | None, rows: int) -> Array:
    """Take one tensor, at a position or key, from a module's output of so many rows, as an array."""
    if key is None:
        found = output
    elif isinstance(key, str):
        found = output.get(key) if isinstance(output, Mapping) else None
    else:
        found = output[key] if isinstance(output, tuple | list) and key < len(output) else None
    if not isinstance(found, Tensor) or not found.ndim or len(found) != rows:
        what = "a tensor" if key is None else f"a tensor at {key!r}"
        raise ModelError(
            f"the module returned {describe(output)}; expected {what} whose first dimension counts the "
            f"batch's {rows} rows",
            code="model-output",
        )
    low = found.dtype in (torch.bfloat16, torch.float16)
    result: Array = found.to("cpu", torch.float32 if low else found.dtype).numpy()
    return result


# -- what logits mean ------------------------------------------------------------------------------


def raw_of(logits: Array) -> Array:
    """Return one value per class, shape (rows, classes), of logits of shape (rows, logits)."""
    return np.concatenate([-logits, logits], 1) if logits.shape[1] == 1 else logits


def raw_prediction_of(logits: Array) -> Array:
    """Return it as a column has it: two logits less their mean, which leaves their softmax as it is.

    Spark's ``BinaryClassificationEvaluator`` orders rows by the second value alone, which of logits as they
    are says nothing without the first.
    """
    if logits.shape[1] != 2:
        return raw_of(logits)
    half = (logits[:, 1:] - logits[:, :1]) / 2
    return np.concatenate([-half, half], 1)


def probability_of(logits: Array) -> Array:
    """Return the probability of each class: softmax, or the sigmoid of a single logit."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], 1)
    e = np.exp(logits - logits.max(1, keepdims=True))
    result: Array = e / e.sum(1, keepdims=True)
    return result


def decide(scores: Array, thresholds: Sequence[float] | None) -> Array:
    """Return the class with the largest score, or score / threshold, along the last dimension, as a double.

    As Spark does: of equal ones the first, and a threshold of 0 wins over all others unless the class has
    probability 0. But a row with a score of NaN has class NaN, where Spark takes one. Raises ConfigError if
    the thresholds do not fit the classes.
    """
    unknown = np.isnan(scores).any(-1)
    if thresholds is not None:
        check_thresholds(thresholds, scores.shape[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = scores / np.asarray(thresholds)
    best = np.argmax(np.where(np.isnan(scores), -np.inf, scores), -1)
    return np.where(unknown, np.nan, best)


def check_thresholds(thresholds: Sequence[float], classes: int) -> None:
    """Check thresholds as Spark does."""
    if len(thresholds) != classes or min(thresholds) < 0 or sum(t == 0 for t in thresholds) > 1:
        raise ConfigError(
            f"thresholds={list(thresholds)}: expected one per class ({classes}), none negative and at most "
            "one 0"
        )


# -- Arrow -----------------------------------------------------------------------------------------


def lists(values: Array, mask: Array | None = None) -> pa.Array:
    """Return (nested) lists over an array of shape (rows, ...), whose memory they share."""
    result = pa.array(np.ascontiguousarray(values).reshape(-1))
    for dims in range(values.ndim - 1, 0, -1):
        offsets = pa.array((np.arange(prod(values.shape[:dims]) + 1) * values.shape[dims]).astype(np.int32))
        null = None if mask is None or dims > 1 else pa.array(mask)
        result = pa.ListArray.from_arrays(offsets, result, mask=null)
    return result


def _vectors(values: Array, mask: Array | None) -> pa.Array:
    """Return dense ML vectors in the form in which Spark keeps them."""
    rows = len(values)
    dense = pa.array(np.ones(rows, np.int8))
    fields = [dense, pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.list_(pa.int32())), lists(values)]
    null = None if mask is None else pa.array(mask)
    return pa.StructArray.from_arrays(fields, ["type", "size", "indices", "values"], mask=null)
