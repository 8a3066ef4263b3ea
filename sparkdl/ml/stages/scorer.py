"""The task of a transform: Arrow batches in, the module's outputs as Arrow arrays out."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from sparkdl._spark.tasks import partition_id
from sparkdl.access.models import Lasting
from sparkdl.data.collate import tensor_of
from sparkdl.data.columns import ColumnPlan, Structure
from sparkdl.exceptions import ModelError
from sparkdl.hf.padding import reads_behind
from sparkdl.ml.stages.arrow_columns import ArrowColumns, EncodedColumns
from sparkdl.ml.stages.outputs import OutputColumn, select
from sparkdl.ml.stages.shipped import Loaded, load_shipped
from sparkdl.nn.batch import map_tensors
from sparkdl.nn.trace import infer
from sparkdl.table.encoding import TableEncoding
from sparkdl.wire.frame import Array

_BATCH_BYTES = 1 << 20
_RESULT_BYTES = 64 << 20
_WINDOW_ROWS = 1024
_BATCH_TOKENS = 4096
_NUMBER = "number"  # keys of columns are others


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores the rows of a task; the same for all tasks of a transform."""

    shipped: Lasting  # the module
    structure: Structure  # how columns become the module's inputs
    plans: tuple[ColumnPlan, ...]  # the columns, in the order in which they are passed
    outputs: tuple[OutputColumn, ...]  # what to return
    batch_size: int | None = None  # rows per forward pass; by default 1 MiB of them, from 32 to 4096
    batch_tokens: int | None = None  # values per forward pass, padding included, where rows differ in length
    keep: bool = False  # whether rows with null have null outputs, instead of being an error
    # of the fields of a struct with all outputs; none to return a single output as it is
    names: tuple[str, ...] = ()
    vectors: bool = True  # whether ML vectors can be returned as such
    # of a table, whose columns are passed in place of those of ``plans``
    encoding: TableEncoding | None = None
    columns: tuple[str, ...] = ()  # names of the table's columns, in the order in which they are passed
    # for each of ``plans`` which of the columns that are passed is its own; as they are by default
    places: tuple[int, ...] = ()

    @property
    def arity(self) -> int:
        """Number of columns that are passed."""
        if self.encoding is not None:
            return len(self.columns)
        return max(self.places) + 1 if self.places else len(self.plans)

    def __call__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Score batches; forward passes have ``batch_size`` rows, however many an Arrow batch has.

        Rows that differ in length are taken together by length, a window of them at a time. DataError names
        column and row for null where it is an error and what is no tensor, ModelError the layer that fails,
        or says that the output is not what was promised.
        """
        return self.score(batches)

    def nulls(self, rows: int) -> pa.Array:
        """Return the results of rows that have none."""
        return pa.nulls(rows, _Results(self).type())

    def score(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]], at: int = 0) -> Iterator[pa.Array]:
        """Score batches of a task, of which the first begins at row ``at``; errors as of a call."""
        columns: ArrowColumns | EncodedColumns
        if self.encoding is not None:
            columns = EncodedColumns(self.plans, self.encoding, self.columns)
        else:
            columns = ArrowColumns(
                self.plans, self.structure, keep=self.keep, name=_row, places=self.places, at=at
            )
        waiting, results = _Rows(), _Results(self)
        first = (partition_id() << 40) + at
        model: Loaded | None = None
        for batch in batches:
            arrays = batch if isinstance(batch, tuple) else (batch,)
            if not len(arrays[0]):
                continue
            valid, converted = columns.convert(arrays)
            results.expect(valid)
            if converted is not None:
                model = model or load_shipped(self.shipped)
                numbers = first + np.flatnonzero(valid)
                waiting.put({**converted, _NUMBER: numbers})
                size = self._rows_at_a_time(columns.plans, converted)
                while waiting.count >= size:
                    results.put(self._window(model, waiting.take(size)))
                    yield from results.ready()
            first += len(valid)
            yield from results.ready()
        if waiting.count and model is not None:
            results.put(self._window(model, waiting.take(waiting.count)))
        yield from results.ready()
        if model is not None:
            model.end_task()

    def _rows_at_a_time(self, plans: Sequence[ColumnPlan], columns: Mapping[str, Array]) -> int:
        """Return the rows of a forward pass, or of a window if they differ in length."""
        size = self.batch_size or rows_per_batch(plans)
        return max(size, _WINDOW_ROWS) if _lengths(columns) is not None else size

    def _window(self, model: Loaded, columns: dict[str, Array]) -> dict[int | str | None, Array]:
        """Return the outputs of rows by key; rows that differ in length in several passes, by length."""
        lengths = _lengths(columns)
        if lengths is None:
            return self._forward(model, columns)
        tokens = self.batch_tokens or (None if self.batch_size else _BATCH_TOKENS)
        order = np.argsort(-lengths, kind="stable")
        ends = None  # of the rows of each length, in order, if only those share a pass
        if reads_behind(model.module):
            ends = np.cumsum(np.unique(-lengths, return_counts=True)[1])
        parts: list[dict[int | str | None, Array]] = []
        begin = 0
        while begin < len(order):
            rows = self.batch_size or len(order)
            if tokens is not None:
                rows = min(rows, max(1, tokens // max(1, int(lengths[order[begin]]))))
            if ends is not None:
                rows = min(rows, int(ends[np.searchsorted(ends, begin, side="right")]) - begin)
            chosen = order[begin : begin + rows]
            parts.append(self._forward(model, {key: array[chosen] for key, array in columns.items()}))
            begin += rows
        for part in parts[1:]:
            _check_shapes(_shapes(part), _shapes(parts[0]))
        back = np.argsort(order)
        return {key: np.concatenate([part[key] for part in parts])[back] for key in parts[0]}

    def _forward(self, model: Loaded, columns: dict[str, Array]) -> dict[int | str | None, Array]:
        """Return the outputs of a batch by key."""
        numbers = columns.pop(_NUMBER)
        rows = len(numbers)
        with warnings.catch_warnings():
            # Arrow's memory is read-only by convention; this one is the task's own, read from a socket.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            plans = {plan.key: plan for plan in self.plans}
            inputs = self.structure.assemble({key: tensor_of(plans[key], a) for key, a in columns.items()})
        if model.device != "cpu":
            inputs = map_tensors(inputs, lambda tensor: tensor.to(model.device))
        output = infer(model.module, inputs, numbers)
        return {wanted.key: select(output, wanted.key, rows) for wanted in self.outputs}


def rows_per_batch(plans: Sequence[ColumnPlan]) -> int:
    """Return how many rows of these columns make 1 MiB, from 32 to 4096."""
    return max(32, min(4096, _BATCH_BYTES // max(1, sum(plan.row_bytes for plan in plans))))


class _Rows:
    """Rows in a queue: they come and go in batches of any size."""

    def __init__(self) -> None:
        self._parts: deque[dict[Any, Array]] = deque()
        self.count = 0
        self.bytes = 0

    def put(self, columns: dict[Any, Array]) -> None:
        self._parts.append(columns)
        self.count += _length(columns)
        self.bytes += _bytes(columns)

    def take(self, rows: int) -> dict[Any, Array]:
        """Remove the first rows; a copy only where they come from several batches."""
        self.count -= rows
        taken = []
        while rows:
            part = self._parts.popleft()
            if _length(part) > rows:
                self._parts.appendleft({key: array[rows:] for key, array in part.items()})
                part = {key: array[:rows] for key, array in part.items()}
            taken.append(part)
            rows -= _length(part)
            self.bytes -= _bytes(part)
        if len(taken) == 1:
            return taken[0]
        return {key: np.concatenate([part[key] for part in taken]) for key in taken[0]}


def _shapes(outputs: Mapping[Any, Array]) -> list[tuple[int, ...]]:
    return [array.shape[1:] for array in outputs.values()]


def _check_shapes(shapes: list[tuple[int, ...]], before: list[tuple[int, ...]] | None) -> None:
    if before not in (None, shapes):
        raise ModelError(
            f"the module's output differs between batches: rows of shape {shapes} after {before}. "
            "Where it follows the length of texts, pad them to one length",
            code="model-output",
        )


def _length(columns: dict[Any, Array]) -> int:
    return len(next(iter(columns.values())))


def _bytes(columns: dict[Any, Array]) -> int:
    return sum(array.nbytes for array in columns.values())


def _lengths(columns: Mapping[str, Array]) -> Array | None:
    """Return the length of each row, of its longest value; ``None`` if all rows have the same."""
    found = [[len(row) for row in column] for column in columns.values() if column.dtype == object]
    return np.max(np.array(found, np.int64), axis=0) if found else None


def _row(number: int) -> str:
    return f"row {number} of partition {partition_id()}"


# -- results out -----------------------------------------------------------------------------------


class _Results:
    """Outputs in the order of the rows, with null for those that the module did not see."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._valid: deque[Array] = deque()
        self._outputs = _Rows()
        self._shapes: list[tuple[int, ...]] | None = None

    def expect(self, valid: Array) -> None:
        """Note that results for these rows are to follow, for the valid ones by :meth:`put`."""
        self._valid.append(valid)

    def put(self, outputs: dict[int | str | None, Array]) -> None:
        shapes = _shapes(outputs)
        _check_shapes(shapes, self._shapes)
        self._shapes = shapes
        self._outputs.put(outputs)

    def ready(self) -> Iterator[pa.Array]:
        """Yield what is known.

        One array for each batch that came in: where Spark hands columns over as they are, it wants the
        result in batches of the same size. Outputs that would take much memory until then go out in parts.
        """
        while self._valid:
            valid = self._valid[0]
            needed = int(valid.sum())
            if needed <= self._outputs.count:
                self._valid.popleft()
                yield self._array(valid, needed)
            elif self._outputs.bytes > _RESULT_BYTES:
                needed = self._outputs.count
                rows = int(np.searchsorted(np.cumsum(valid), needed, side="right"))
                self._valid[0] = valid[rows:]
                yield self._array(valid[:rows], needed)
            else:
                return

    def _array(self, valid: Array, needed: int) -> pa.Array:
        """Return the results of some rows, of which the valid ones take the next outputs."""
        if not needed:
            return pa.nulls(len(valid), self.type())
        outputs = self._outputs.take(needed)
        # Nulls are made by masks: taking rows by index would leave null in fields that Spark says have none.
        mask = None if needed == len(valid) else ~valid
        scorer = self._scorer
        if not scorer.names:
            return self._column(scorer.outputs[0], outputs, valid, mask)
        columns = [self._column(output, outputs, valid, None) for output in scorer.outputs]
        return pa.StructArray.from_arrays(
            columns, scorer.names, mask=None if mask is None else pa.array(mask)
        )

    def _column(
        self, output: OutputColumn, outputs: dict[int | str | None, Array], valid: Array, mask: Array | None
    ) -> pa.Array:
        values = outputs[output.key]
        if len(values) < len(valid):
            spread = np.zeros((len(valid), *values.shape[1:]), values.dtype)
            spread[valid] = values
            values = spread
        return output.to_arrow(values, mask, vectors=self._scorer.vectors)

    def type(self) -> pa.DataType:
        """Return the type of results."""
        from pyspark.sql.pandas.types import to_arrow_type

        scorer = self._scorer
        kinds = [output.sql_type(vectors=scorer.vectors) for output in scorer.outputs]
        if not scorer.names:
            return to_arrow_type(kinds[0])
        fields = zip(scorer.names, kinds, strict=True)
        return to_arrow_type(StructType([StructField(name, kind) for name, kind in fields]))
