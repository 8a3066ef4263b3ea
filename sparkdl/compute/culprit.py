"""Finds the row that makes a loss NaN or infinite; runs only after such a loss.

A module may have a use for NaN in its features, so they are no error in themselves, and looking through all
of them would cost time in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sparkdl.data.columns import TablePlan
from sparkdl.data.sampler import Rows
from sparkdl.nn.batch import Batch, tensors_of
from sparkdl.wire.frame import Array


def find_culprit(plan: TablePlan, rows: Rows, columns: Mapping[str, Array], batches: Sequence[Batch]) -> str:
    """Say which feature is NaN or infinite, and in which row; empty if all are finite."""

    def say(bad: Array, where: str, value: Any) -> str:
        more = f" (and {bad.sum() - 1} more rows of the iteration)" if bad.sum() > 1 else ""
        return f"{where}, {rows.name(plan, int(bad.argmax()))}: {value}{more}"

    for column in plan.columns:
        values = columns[column.key]
        if column.key in plan.features.keys and values.dtype.kind in "fO":
            bad, value = _not_finite(values)
            if bad is not None:
                return say(bad, f"column {column.source!r}", value)
    start = 0
    for batch in batches:
        for tensor in tensors_of(batch.inputs):
            if tensor.is_floating_point() and not tensor.is_sparse and len(tensor) == batch.rows:
                bad, value = _not_finite(tensor.detach().to("cpu", torch.float32).numpy())
                if bad is not None:
                    whole = np.zeros(len(rows), np.bool_)
                    whole[start : start + batch.rows] = bad
                    made = (
                        "collate's output"
                        if any(c.ragged for c in plan.columns)
                        else "the transform's output"
                    )
                    return say(whole, made, value)
        start += batch.rows
    return ""


def _not_finite(values: Array) -> tuple[Array | None, Any]:
    """Return which rows have a value that is not finite, and the first such value."""
    if values.dtype == object:  # rows of different lengths
        rows = np.array([bool(np.isfinite(row).all()) for row in values])
        row = values[rows.argmin()]
        return (~rows, row[~np.isfinite(row)][0]) if not rows.all() else (None, None)
    flat = values.reshape(len(values), -1)
    found = ~np.isfinite(flat)
    return (np.asarray(found.any(axis=1)), flat[found][0]) if found.any() else (None, None)
