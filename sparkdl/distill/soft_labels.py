"""Teachers' outputs as columns of the partition store: computed once, in the tasks that write it.

A logit takes two bytes (bfloat16), as the bits of an int16, less the row's largest one if that is far from
0; an amount, whose differences may be small beside itself, four. With ``top_k`` a row keeps its largest
logits, their classes, and one more logit, which each of the other classes has: at the loss's temperature
their probabilities add up to what they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkdl import seeding
from sparkdl._spark.tasks import task_resources
from sparkdl.access.base import Access, BytesRef, Frames
from sparkdl.data.collate import Collate
from sparkdl.data.columns import ColumnPlan, Structure, TablePlan
from sparkdl.data.dataset import Dataset
from sparkdl.data.scan.copied import CopiedScan
from sparkdl.data.scan.source import ScanSource
from sparkdl.data.store import partition as store
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.partition import StoreBatch, Token
from sparkdl.distill.teachers import Answering
from sparkdl.exceptions import ModelError
from sparkdl.nn import serialize
from sparkdl.nn.numerics import device_of_task
from sparkdl.train.passes.sweep import BatchReader, located, rows_per_batch
from sparkdl.train.shipped import threads_per_task
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts

_LARGEST_SHORT = 1 << 15
_FAR = 16.0  # a logit beyond which bfloat16 has steps of 0.125 and more, which show in a softmax


@dataclass(frozen=True, slots=True)
class LogitEncoding:
    """How a teacher's logits become columns, and logits again."""

    name: str  # of the entry in the label; that of the classes ends with ``_classes``
    shape: tuple[int, ...]  # of a row's logits
    top_k: int | None  # how many logits a row keeps; ``None`` for all
    temperature: float  # at which the other classes keep their probability
    exact: bool = False  # whether they may be amounts, which stay float32; without ``top_k``

    @property
    def plans(self) -> dict[str, ColumnPlan]:
        """The columns, by entry of the label."""
        if self.top_k is None:
            shapes = {self.name: ("float32" if self.exact else "int16", self.shape)}
        else:
            kind = "int16" if self.shape[-1] <= _LARGEST_SHORT else "int32"
            shapes = {self.name: ("int16", (self.top_k + 1,)), f"{self.name}_classes": (kind, (self.top_k,))}
        return {
            name: ColumnPlan(f"label_{name}", f"soft labels ({name})", False, dtype, shape)
            for name, (dtype, shape) in shapes.items()
        }

    def encode(self, logits: Tensor) -> dict[str, Array]:
        """Return the columns of some rows, by key."""
        logits = logits.detach().to("cpu", torch.float32)
        if logits.shape[1:] != self.shape:
            if not bool(logits.isnan().all()):
                raise ModelError(
                    f"a teacher's output has shape {tuple(logits.shape[1:])} per row, expected {self.shape}"
                )
            logits = logits.new_full((len(logits), *self.shape), math.nan)  # nobody has answered
        plans = list(self.plans.values())
        if self.exact:
            return {plans[0].key: logits.contiguous().numpy()}
        logits = _near_zero(logits)
        if self.top_k is None:
            return {plans[0].key: _bits(logits)}
        # NaN, where nobody has answered, counts as the largest, and stays NaN.
        values, classes = logits.topk(self.top_k, dim=-1)
        others = logits.scatter(-1, classes, -math.inf) / self.temperature
        rest = torch.logsumexp(others, -1, keepdim=True) - math.log(self.shape[-1] - self.top_k)
        kept = torch.cat([values, rest * self.temperature], -1)
        return {plans[0].key: _bits(kept), plans[1].key: classes.numpy().astype(plans[1].dtype)}

    def decode(self, label: Mapping[str, Tensor]) -> Tensor:
        """Return logits of the columns."""
        if self.exact:
            return label[self.name]
        values = label[self.name].view(torch.bfloat16).float()
        if self.top_k is None:
            return values
        logits = values[:, -1:].expand(len(values), self.shape[-1])
        return logits.scatter(-1, label[f"{self.name}_classes"].long(), values[:, :-1])


def _near_zero(logits: Tensor) -> Tensor:
    """Return logits less their largest where that is far from 0: of the same softmax, and rounded less."""
    largest = logits.amax(-1, keepdim=True)
    far = largest.isfinite() & (largest.abs() > _FAR)
    return torch.where(far, logits - largest, logits)


def _bits(values: Tensor) -> Array:
    return values.contiguous().to(torch.bfloat16).view(torch.int16).numpy()


@dataclass(frozen=True, slots=True)
class Labelling:
    """Teachers, and how their answers become columns."""

    teachers: Sequence[tuple[Answering, LogitEncoding]]  # who answers, each with its encoding
    reader: BatchReader  # how stored columns become what teachers read
    batch_size: int  # rows of a forward pass
    seed: int  # of random numbers of the Dataset's transform

    def batches(self, token: Token) -> Iterator[StoreBatch]:
        """Yield the columns of a partition."""
        seeding.seed_task(self.seed, 0, 0, token.partition)
        device = device_of_task(task_resources())
        for teacher, _ in self.teachers:
            teacher.to(device)
        modules = [module for teacher, _ in self.teachers for module in teacher.children()]
        numbers: list[Array] = []
        parts: list[dict[str, Array]] = []
        for rows, places, batch in self.reader.batches(token, self.batch_size, *modules):
            with located(token, rows):
                batch = batch.to(device)
                found: dict[str, Array] = {}
                for teacher, encoding in self.teachers:
                    found |= encoding.encode(teacher(batch))
                parts.append(found)
            numbers.append(rows.numbers[places])
            if sum(map(len, numbers)) == len(rows):
                order = np.argsort(np.concatenate(numbers))
                yield rows.numbers, {k: np.concatenate([part[k] for part in parts])[order] for k in parts[0]}
                numbers, parts = [], []


def _label(
    sent: BytesRef,
    plans: tuple[ColumnPlan, ...],
    keys: frozenset[str],
    threads: int,
    partition: int,
    frames: Iterator[bytes],
) -> Iterator[bytes | Parts]:
    """Add soft labels to a partition that a task has just written; yield its token."""
    for data in frames:
        token = Token.from_frame(frame.unpack(data))
        if token.rows and not token.error:
            torch.set_num_threads(threads)
            labelling: Labelling = serialize.loads(sent.read(once=True))
            started = time.perf_counter()
            token = store.with_columns(token, plans, labelling.batches(token), keys)
            token = replace(token, seconds=time.perf_counter() - started)
        yield token.to_frame()


class LabelledSource(StoreSource):
    """The rows of another source, with soft labels."""

    def __init__(
        self,
        source: StoreSource,
        plan: TablePlan,
        labelling: Labelling,
        plans: Sequence[ColumnPlan],
        peeked: Mapping[str, Array],
    ) -> None:
        self._source, self._plan = source, plan
        self._labelling, self._plans = labelling, tuple(plans)
        self._peeked = dict(peeked)

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        return {column.key: self._peeked[column.key][:rows] for column in plan.columns}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        written = self._source.tokens(access, self._plan, store, partitions)
        if self._sent is None:
            self._sent = access.send(serialize.dumps(self._labelling, "teachers"))
        available = access.executors()
        threads = threads_per_task(available, partitions) if isinstance(partitions, int) else 1
        keys = frozenset(column.key for column in plan.columns)
        task = partial(_label, self._sent.ref, self._plans, keys, threads)
        return access.stage(written, task, self._sent.broadcasts, profile=access.profile(threads))


@dataclass(frozen=True, slots=True)
class Beside:
    """Lets a Dataset's ``collate`` make batches of rows that have further entries in their label."""

    collate: Collate  # the Dataset's own
    label: Structure  # how its rows have their label: none, one, or several by name
    more: tuple[str, ...]  # names of further entries, which are stacked

    def __call__(self, rows: list[Any]) -> Any:
        """Return inputs and label."""
        more = {name: torch.stack([label[name] for _, label in rows]) for name in self.more}
        if self.label.kind == "none":
            return self.collate([row for row, _ in rows]), more
        if self.label.kind == "single":
            inputs, own = self.collate([(row, label["label"]) for row, label in rows])
            return inputs, {"label": own, **more}
        inputs, own = self.collate(
            [(row, {name: label[name] for name in self.label.names}) for row, label in rows]
        )
        return inputs, {**own, **more}


def labelled(
    data: Dataset,
    teachers: Sequence[tuple[Answering, LogitEncoding]],
    unused: frozenset[str],
    first: Mapping[str, Array],
    seed: int,
) -> Dataset:
    """Return a Dataset of the same rows with soft labels, which are computed when its store is built.

    ``data`` must have been peeked at: ``first`` are its first rows by key. Entries of the label in ``unused``
    are left out: teachers alone read them. Raises ConfigError if the rows stay in their files, and may not be
    copied.
    """
    plan, label = data.plan, data.plan.label
    names = {"none": (), "single": ("label",)}.get(label.kind, label.names)
    before = {name: key for name, key in zip(names, label.keys, strict=True) if name not in unused}
    added = {name: made for _, encoding in teachers for name, made in encoding.plans.items()}
    entries = before | {name: made.key for name, made in added.items()}
    dropped = {key for name, key in zip(names, label.keys, strict=True) if name in unused}
    columns = [column for column in plan.columns if column.key not in dropped]
    place = len(columns) - plan.weighted  # a weight is the last column
    columns[place:place] = added.values()
    own = replace(
        plan, columns=tuple(columns), label=Structure("dict", tuple(entries.values()), tuple(entries))
    )
    collate = data.collate
    if collate is not None:
        left = label if label.kind != "dict" else Structure("dict", tuple(before.values()), tuple(before))
        collate = Beside(collate, left, tuple(added))
    labelling = Labelling(teachers, BatchReader.of(data), rows_per_batch(data, None), seed)
    peeked = data.peek()
    count = len(next(iter(peeked.values())))
    peeked = peeked | {key: array[:count] for key, array in first.items()}
    rows = data.source
    if isinstance(rows, ScanSource):
        rows = CopiedScan(data.spark, rows)
        rows.check_room(plan, own.row_bytes, "the teachers' logits")
    source = LabelledSource(rows, plan, labelling, list(added.values()), peeked)
    return Dataset(data.spark, own, source, data.num_partitions, data.transform, collate, access=data.access)
