"""The dry run: two rows through module, loss and backward on the driver, before anything long."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from sparkdl.compute.dependence import check_attributes
from sparkdl.compute.forward_backward import make_batch
from sparkdl.compute.spec import FitSpec
from sparkdl.data.columns import TablePlan
from sparkdl.data.dataset import Dataset
from sparkdl.data.ragged import is_ragged, kind_of
from sparkdl.exceptions import DataError, ModelError, SparkdlWarning
from sparkdl.nn import serialize
from sparkdl.nn.batch import Batch, tensors_of
from sparkdl.nn.changing import ChangeWatch, refuse_trained, refuse_untrained
from sparkdl.nn.divisor import of_few_rows
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward, try_forward
from sparkdl.nn.lightning import check_mode, to_train
from sparkdl.nn.meeting import ROWS, find_broadcast
from sparkdl.nn.numerics import Replica
from sparkdl.nn.objective import parts_of
from sparkdl.nn.parameters import moving_with_buffers
from sparkdl.nn.row_mean import differs, is_known
from sparkdl.nn.trace import describe
from sparkdl.train.passes.sweep import BatchReader
from sparkdl.wire.frame import Array

_OF_NORMS = ("num_batches_tracked", "running_mean", "running_var")
_TRIED_ROWS = 6  # rows with which a loss is tried, whole and in parts


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """The result of a dry run."""

    shipped: bytes  # the pickled spec
    moving: frozenset[str]  # names of frozen parameters that forward writes to


def dry_run(spec: FitSpec, data: Dataset) -> DryRunResult:
    """Train on the first rows once, on copies.

    Raises SerializationError if a part cannot be shipped to the executors, DataError if the transform fails,
    ModelError naming the layer that does, or state that forward changes and that cannot travel.
    """
    shipped = _ship(spec)
    rows = {key: _at_least_two(values) for key, values in data.peek().items()}
    local: FitSpec = serialize.loads(shipped)
    found = _describe_rows(rows, data.plan)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), of_few_rows():
        # Torch only warns when shapes broadcast to a loss that is not what anybody meant.
        warnings.filterwarnings("error", message=".*target size.*", category=UserWarning)
        try:
            batch = make_batch(
                rows, local.features, local.label, local.weighted, local.transform, local.collate
            )
        except Exception as error:
            what = "transform" if local.collate is None else "collate, or transform,"
            raise DataError(
                f"{what} failed on row 0 of the Dataset ({found}): {error!r}", code="data-transform"
            ) from error
        _check_rows(batch, "transform" if local.collate is None else "collate")
        if batch.weight is not None:  # weights of zero would leave nothing to try
            batch = replace(batch, weight=torch.ones_like(batch.weight))
        # Compiling takes longer than the dry run may; the workers fall back where it fails.
        check_mode(local.module)
        numerics = replace(local.numerics, compile=False)
        replica = Replica(to_train(local.module), local.layout, numerics)
        watch = ChangeWatch(replica, [*parts_of(local.objective).values()], trained=True)
        before = replica.buffers(), replica.counters()
        try:
            forward_backward(replica, batch, local.objective, None)
        except ModelError as error:
            culprit = "" if error.input is None else f"column {data.plan.columns[error.input].source!r}, "
            raise ModelError(f"{culprit}row 0 of the Dataset ({found}): {error}") from error.__cause__
        written_buffers = _written(replica, before)  # which refuses those of another type now
        refuse_untrained(watch.untrained())
        written, moving = watch.tensors()
        refuse_trained(written)
        if changed := watch.attributes():
            layout = moving_with_buffers(local.layout, local.module, moving)
            spec = replace(local, layout=layout, numerics=numerics)
            used = Replica(local.module, layout, numerics)
            check_attributes(changed, used, spec, lambda: serialize.loads(shipped), batch)
        reader = BatchReader.of(data)
        check_shapes(local, replica, reader.batch(some_rows(data.peek())))
        partitions = data.num_partitions or data.access.executors().count
        told = _tell_coupled(local, replica, partitions, written_buffers, data.first_rows, reader)
    if told:
        warnings.warn(SparkdlWarning(told, code="model-output"), stacklevel=4)
    return DryRunResult(shipped, frozenset(moving))


def _tell_coupled(
    spec: FitSpec,
    replica: FlatModule,
    partitions: int | str,
    written: Collection[str],
    first_rows: Callable[[int], dict[str, Array]],
    reader: BatchReader,
) -> str:
    """Return a warning if a gradient is not that of the whole batch, whose rows are not together.

    ``written`` are the buffers that forward changes, without those of norm layers.
    """
    if partitions == 1 and spec.micro_batch_size is None:
        return ""
    by_count = [n for n, m in replica.module.named_modules() if getattr(m, "scale_grad_by_freq", False)]
    if by_count:
        return (
            f"scale_grad_by_freq of {by_count[0] or 'the module'}: partitions and micro-batches count ids "
            "of their own rows, so the gradient is not that of the whole batch. Leave it out, or train with "
            "one partition (num_partitions=1) and no micro_batch_size"
        )
    of_batches = [n for n, m in replica.module.named_modules() if isinstance(m, torch.nn.SyncBatchNorm)]
    if of_batches:
        return (
            f"{of_batches[0] or 'the module'} is a SyncBatchNorm, which here is a BatchNorm: partitions and "
            "micro-batches normalise by their own rows, and statistics are averaged. Take GroupNorm or "
            "LayerNorm, or train with one partition (num_partitions=1) and no micro_batch_size"
        )
    known = is_known(spec.objective)
    if partitions != 1 and written:
        rows = first_rows(_TRIED_ROWS // 2)
        if warning := _tell_counting(spec, replica, rows, reader, written):
            return warning
    if known:
        return ""
    batch = reader.batch(first_rows(_TRIED_ROWS))
    with replica.computing():
        found = differs(spec.objective, replica.module, replica.prepare(batch))
    if found is None:
        return ""
    return (
        f"the loss is no mean over rows: that of {batch.rows} rows is {found[0]:.6g}, and the mean of two "
        f"parts is {found[1]:.6g}. Partitions and micro-batches each compute the loss of their own rows, so "
        "the gradient is not that of the whole batch. Train with one partition (num_partitions=1) and no "
        "micro_batch_size where rows of a batch are compared with each other; divide a sum by its rows; "
        "return {'loss': mean, 'divisor': number} from step= where something else than rows is counted"
    )


def _written(replica: FlatModule, before: tuple[Array, Array]) -> set[str]:
    """Return the names of buffers that are not as before, without those of norm layers, which are right."""
    norms = [n for n, m in replica.module.named_modules() if isinstance(m, _NormBase)]
    known = {f"{name}.{own}".removeprefix(".") for name in norms for own in _OF_NORMS}
    layout, now = replica.layout, (replica.buffers(), replica.counters())
    found = set()
    for places, then, values in zip((layout.buffers, layout.counters), before, now, strict=True):
        other = ~((then == values) | ((then != then) & (values != values)))
        found |= {p.name for p in places if p.name not in known and other[p.offset : p.end].any()}
    return found


def _tell_counting(
    spec: FitSpec, replica: FlatModule, some: dict[str, Array], reader: BatchReader, names: Collection[str]
) -> str:
    """Return a warning if a buffer grows with the rows of a batch: once, twice and four times the same ones.

    A mean over rows, and a count of batches, are the same then.
    """
    rows = len(next(iter(some.values())))
    batch = reader.batch({key: np.take(v, np.arange(4 * rows) % rows, axis=0) for key, v in some.items()})
    if batch.rows != 4 * rows:  # a collate has left rows out, or made more of them
        return ""
    before = replica.buffers(), replica.counters()
    found = []
    for times in (1, 2, 4):
        try_forward(replica, batch.narrow(0, times * rows), spec.objective, None)
        found.append((replica.buffers(), replica.counters()))
        replica.load_buffers(*before)
    layout = replica.layout
    one, two, four = (counters for _, counters in found)
    for place in layout.counters:
        if place.name in names and (one != two)[place.offset : place.end].any():
            return (
                f"forward counts the rows of a batch in buffer {place.name!r}: each partition counts those "
                "of its own, and the largest of their counts goes on. Count batches, or train with one "
                "partition (num_partitions=1)"
            )
    one, two, four = (buffers for buffers, _ in found)
    for place in layout.buffers:
        at = slice(place.offset, place.end)
        if place.name in names and _grows(one[at], two[at], four[at]):
            return (
                f"forward adds up the rows of a batch in buffer {place.name!r}: each partition adds up those "
                "of its own, and the mean of their sums goes on. Take means over the rows of a batch, or "
                "train with one partition (num_partitions=1)"
            )
    return ""


def _grows(one: Array, two: Array, four: Array) -> bool:
    """Return whether values grow in proportion to the number of rows."""
    step = two - one
    largest = np.abs(step).max(initial=0.0)
    if not np.isfinite(four).all() or largest <= 1e-6 * np.abs(four).max(initial=0.0):
        return False
    return bool(np.allclose(four - two, 2 * step, rtol=1e-2, atol=1e-2 * largest))


def some_rows(peeked: dict[str, Array]) -> dict[str, Array]:
    """Return as many rows as shapes are checked with: the first ones, again and again."""
    return {key: np.take(values, np.arange(ROWS) % len(values), axis=0) for key, values in peeked.items()}


def check_shapes(spec: FitSpec, replica: FlatModule, batch: Batch) -> None:
    """Check that the loss compares each row's output with that row's label."""
    with replica.computing():
        refuse(find_broadcast(spec.objective, replica.module, replica.prepare(batch)), "the loss")


def refuse(found: str, what: str) -> None:
    """Raise an error if outputs and labels meet across rows."""
    if found:
        raise ModelError(
            f"{what} compares rows with each other: {found} broadcast to (rows, rows). Bring both into one "
            "shape: output.squeeze(1) or label.unsqueeze(1), or make the label column an array of one "
            "element. Where all pairs are meant, say label[None, :]",
            code="model-output",
        )


def _ship(spec: FitSpec) -> bytes:
    parts = {
        "module": spec.module,
        **parts_of(spec.objective),
        "optimizer": spec.rule.optimizer,
        "transform": spec.transform,
        "collate": spec.collate,
    }
    for name, part in parts.items():
        serialize.dumps(part, name)
    return serialize.dumps(spec, "the training setup")


def _at_least_two(values: Array) -> Array:
    """Copy rows, for torch wants to own them; repeat a single one: BatchNorm refuses to train on it."""
    return np.array(values) if len(values) > 1 else np.repeat(values, 2, axis=0)


def _describe_rows(rows: dict[str, Array], plan: TablePlan) -> str:
    names = {column.key: column.source for column in plan.columns}
    kinds = {key: kind_of(values) for key, values in rows.items()}
    return ", ".join(
        f"{names[key]}: {dtype}{['any', *shape[1:]] if is_ragged(shape) else list(shape)}"
        for key, (dtype, shape) in kinds.items()
    )


def _check_rows(batch: Batch, what: str) -> None:
    """Check that a transform or ``collate`` kept the rows."""
    inputs: Any = batch.inputs
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    tensors = list(tensors.values()) if isinstance(tensors, dict) else list(tensors)
    for tensor in [*tensors, *tensors_of(batch.label)]:
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or tensor.shape[0] != batch.rows:
            raise DataError(
                f"{what} must return tensors with the batch's {batch.rows} rows, got {describe(tensor)}",
                code="data-transform",
            )
