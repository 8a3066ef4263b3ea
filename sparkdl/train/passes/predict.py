"""Prediction: the module's output for every row of a Dataset, as one Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sparkdl.access.base import Access, BytesRef, Published
from sparkdl.compute.worker import FitRef, Worker
from sparkdl.data.dataset import Dataset
from sparkdl.data.store import partition as store
from sparkdl.exceptions import ModelError
from sparkdl.hf.sampling import numbered
from sparkdl.nn import serialize
from sparkdl.nn.trace import describe as say
from sparkdl.train.passes.sweep import BatchReader, evaluating, located, output_of, rows_per_batch, sweep
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Parts


@dataclass(frozen=True, slots=True)
class Predict:
    """The task of one prediction, the same for all partitions."""

    fit: FitRef
    weights: BytesRef
    reader: BytesRef
    batch_size: int

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield a frame of outputs and positions for each batch."""
        (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
        worker = self.fit.worker()
        try:
            yield from self._outputs(partition, token, worker)
        except store.PartitionMissingError:
            yield store.missing(partition)
        worker.end_task()

    def _outputs(self, partition: int, token: store.Token, worker: Worker) -> Iterator[Parts]:
        if not token.rows:
            return
        reader: BatchReader = serialize.loads(self.reader.read())
        with evaluating(worker, self.weights, partition) as replica:
            for rows, places, batch in reader.batches(token, self.batch_size, replica.module):
                positions = rows.positions()[places]
                with located(token, rows), numbered(positions):
                    structure, arrays = flatten(output_of(replica, batch), len(positions))
                arrays["positions"] = positions
                yield frame.pack({"kind": "outputs", "structure": structure}, arrays)


def flatten(output: Any, rows: int) -> tuple[Any, dict[str, Array]]:
    """Split an output that lies on the CPU into its structure, as JSON, and arrays by number."""
    arrays: dict[str, Array] = {}

    def visit(tree: Any) -> Any:
        if tree is None:
            return None
        if isinstance(tree, Tensor) and tree.ndim and len(tree) == rows:
            arrays[str(len(arrays))] = tree.numpy()
            return len(arrays) - 1
        if isinstance(tree, Mapping) and all(isinstance(key, str) for key in tree):
            return {"dict": {key: visit(value) for key, value in tree.items()}}
        if isinstance(tree, tuple):
            return {"tuple": [visit(value) for value in tree]}
        raise ModelError(
            f"the output {say(output)} has {say(tree)} in it; prediction needs tensors whose "
            f"first dimension counts the batch's {rows} rows, or tuples and dicts of them",
            code="model-output",
        )

    return visit(output), arrays


def unflatten(structure: Any, arrays: Sequence[Array]) -> Any:
    """Put arrays together as the module's output was."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return arrays[structure]
    if "dict" in structure:
        return {key: unflatten(value, arrays) for key, value in structure["dict"].items()}
    return tuple(unflatten(value, arrays) for value in structure["tuple"])


def assemble(frames: list[Frame]) -> Any:
    """Put all batches' outputs into the order of positions; empties the list, to free what is copied."""
    structure, kinds = frames[0].meta["structure"], _kinds(frames[0])
    positions = np.concatenate([part.arrays["positions"] for part in frames])
    place = np.empty(len(positions), np.int64)
    place[np.argsort(positions, kind="stable")] = np.arange(len(positions))
    arrays = [np.empty((len(place), *shape), dtype) for dtype, shape in kinds]
    frames.reverse()
    start = 0
    while frames:
        part = frames.pop()
        found = _kinds(part)
        if part.meta["structure"] != structure or found != kinds:
            raise ModelError(
                f"the module's output differs between batches: {part.meta['structure']} of {_say(found)} "
                f"after {structure} of {_say(kinds)}; prediction needs one structure and shape for all rows",
                code="model-output",
            )
        stop = start + len(part.arrays["positions"])
        for n, array in enumerate(arrays):
            array[place[start:stop]] = part.arrays[str(n)]
        start = stop
    return unflatten(structure, arrays)


_Kinds = list[tuple[np.dtype[Any], tuple[int, ...]]]


def _kinds(part: Frame) -> _Kinds:
    """Return dtype and row shape of each array of the output."""
    arrays = [part.arrays[str(n)] for n in range(len(part.arrays) - 1)]
    return [(array.dtype, array.shape[1:]) for array in arrays]


def _say(kinds: _Kinds) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in kinds)


def run_prediction(
    access: Access,
    fit: FitRef,
    sent: Published,
    data: Dataset,
    weights: Published,
    describe: str,
    batch_size: int | None = None,
    profile: Any = None,
) -> Any:
    """Return the module's output for every row, in the order of the Dataset's source.

    For arrays that is their order; for an RDD or DataFrame that of ``collect()``, if it gives its rows in the
    same order each time. Labels are not read. The driver holds the whole output, for a moment twice. The
    rows' store is built if it is not yet. ``batch_size`` is by default 1 MiB of stored rows, from 32 to 4096.
    Raises ModelError naming the layer that fails, or if the output is not one entry per row, DataError if the
    transform fails or partitions stay missing, TaskError for others.
    """
    data.store()  # before row_bytes: the first rows may decide on dtypes
    reader = access.send(serialize.dumps(BatchReader.of_features(data), "transform"))
    try:
        task = Predict(fit, weights.ref, reader.ref, rows_per_batch(data, batch_size))
        broadcasts = [found for one in (sent, reader, weights) for found in one.broadcasts]
        frames = sweep(access, data, task, broadcasts, describe=describe, doing="predicting", profile=profile)
    finally:
        reader.release()
    return assemble(frames)
