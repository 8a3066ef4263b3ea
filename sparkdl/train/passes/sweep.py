"""A pass over all rows of a Dataset in order, as one Spark job: what evaluation and prediction share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl import seeding
from sparkdl._spark.errors import explained
from sparkdl._spark.frames import Task
from sparkdl.access.base import Access, BytesRef, described
from sparkdl.allreduce.shard_states import rows_in
from sparkdl.compute.forward_backward import make_batch
from sparkdl.compute.worker import Worker
from sparkdl.data.collate import Collate
from sparkdl.data.columns import Structure
from sparkdl.data.dataset import Dataset
from sparkdl.data.sampler import Rows, in_order
from sparkdl.data.scan.reader import Reading
from sparkdl.data.store import partition as store
from sparkdl.data.store.build import MAX_ATTEMPTS
from sparkdl.data.store.manifest import Unchanged, changed_error
from sparkdl.exceptions import DataError, ModelError
from sparkdl.hf.padding import reads_behind
from sparkdl.nn.batch import Batch
from sparkdl.nn.embedding import embedding_variables
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import evaluate
from sparkdl.nn.objective import LossObjective
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame

_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchReader:
    """How the rows of a Dataset become batches."""

    features: Structure  # how stored columns become the module's inputs
    label: Structure  # how stored columns become the label
    weighted: bool  # whether rows have weights
    transform: Callable[[Any], Any] | None  # applied to the inputs of each batch
    collate: Collate | None = None  # makes inputs and label of a list of rows; ``None`` to stack columns

    @classmethod
    def of(cls, data: Dataset) -> BatchReader:
        """Return the reader of a Dataset's rows."""
        plan = data.plan
        return cls(plan.features, plan.label, plan.weighted, data.transform, data.collate)

    @classmethod
    def of_features(cls, data: Dataset) -> BatchReader:
        """Return the reader of a Dataset's features alone; ``collate`` gets rows as they are."""
        label = Structure("none") if data.collate is None else data.plan.label
        return cls(data.plan.features, label, False, data.transform, data.collate)

    def batch(self, columns: dict[str, Array]) -> Batch:
        """Turn columns into a batch."""
        try:
            return make_batch(columns, self.features, self.label, self.weighted, self.transform, self.collate)
        except Exception as error:
            what = "the transform" if self.collate is None else "collate, or the transform,"
            raise DataError(f"{what} failed: {error!r}", code="data-transform") from error

    def batches(
        self, token: store.Token, size: int, *modules: nn.Module
    ) -> Iterator[tuple[Rows, Array | slice, Batch]]:
        """Read a partition in order: some rows at a time, and which of them a batch has.

        Rows that differ in length share no batch if one of the modules reads what fills them up.
        PartitionMissingError if the partition is gone, DataError if the transform fails.
        """
        keys = {*self.features.keys, *self.label.keys, *(["weight"] if self.weighted else [])}
        apart = any(map(reads_behind, modules))
        for start in range(0, token.rows, size):
            rows = in_order(token, start, size)
            columns = rows.read(keys)
            for places in self._of_one_length(columns) if apart else [slice(None)]:
                with located(token, rows):
                    batch = self.batch({key: column[places] for key, column in columns.items()})
                yield rows, places, batch

    def _of_one_length(self, columns: dict[str, Array]) -> list[Array | slice]:
        """Return the places of the rows of each length."""
        found = [columns[key] for key in self.features.keys if columns[key].dtype == object]
        if not found:
            return [slice(None)]
        lengths = np.array([[len(row) for row in column] for column in found])
        of = np.unique(lengths, axis=1, return_inverse=True)[1].reshape(-1)
        return [np.flatnonzero(of == number) for number in range(of.max() + 1)]


@contextmanager
def located(token: store.Token, rows: Rows) -> Iterator[None]:
    """Say in errors which rows they come from."""
    try:
        yield
    except (DataError, ModelError) as error:
        where = f"partition {token.partition}, rows {rows.numbers[0]} to {rows.numbers[-1]}"
        raise type(error)(f"{where}: {error}") from error.__cause__


def first_inputs(data: Dataset) -> Any:
    """Return the module's inputs of the first rows; random numbers of a transform are not the driver's."""
    with torch.random.fork_rng(devices=[]):
        rows = {key: np.array(values) for key, values in data.peek().items()}
        return BatchReader.of_features(data).batch(rows).inputs


def rows_per_batch(data: Dataset, batch_size: int | None) -> int:
    """Return the rows of one forward pass: as asked, or 1 MiB of them, from 32 to 4096."""
    return batch_size or max(32, min(4096, _BATCH_BYTES // max(data.plan.row_bytes, 1)))


@contextmanager
def evaluating(worker: Worker, weights: BytesRef, partition: int) -> Iterator[FlatModule]:
    """Lend the worker's replica with the given weights, in evaluation mode and without gradients."""
    sent = frame.unpack(weights.read())
    current = sent.arrays
    with worker.replica.lending(), ExitStack() as holding:
        variables = embedding_variables(worker.replica.module)
        for name, entries in rows_in(sent).items():
            holding.enter_context(variables[name].holding(entries))
        worker.replica.load(current["params"], current["buffers"], current["counters"])
        # A transform may draw random numbers: the same ones in each pass.
        seeding.seed_task(worker.spec.seed, 0, 0, partition)
        with worker.replica.evaluating():
            yield worker.replica


def output_of(replica: FlatModule, batch: Batch) -> Any:
    """Return the module's output for a batch, on the CPU and in no lower precision than float32."""
    no_loss = LossObjective(lambda output, target: torch.zeros(()))
    return evaluate(replica, replace(batch, weight=None), no_loss).output


def sweep(
    access: Access,
    data: Dataset,
    task: Task,
    broadcasts: Sequence[Any],
    *,
    describe: str,
    doing: str,
    profile: Any = None,
) -> list[Frame]:
    """Run a task over a Dataset's store and return its frames, partition by partition.

    A partition whose files are missing, which the task says in a frame of kind ``missing``, is rebuilt, and
    the job run again. Raises DataError if partitions stay missing or have other rows than when built,
    TaskError, or sparkdl's error of a task.
    """
    built = data.store()
    for _ in range(MAX_ATTEMPTS):
        with described(access, describe), explained(doing):
            checked = Reading(Unchanged(task, built.manifest))
            frames = access.collect(access.stage(built.tokens, checked, broadcasts, profile=profile))
        messages = [frame.unpack(data) for data in frames]
        for message in messages:
            if message.meta["kind"] == "changed":
                raise changed_error(message.meta, doing)
        missing = {m.meta["partition"] for m in messages if m.meta["kind"] == "missing"}
        if not missing:
            return messages
        for partition in missing:
            access.forget(built.tokens, partition)
    raise DataError(
        f"{doing}: partitions of the store were still missing after {MAX_ATTEMPTS} rebuilds; is the "
        "executors' local disk full or being cleaned?",
        code="data-store",
    )
