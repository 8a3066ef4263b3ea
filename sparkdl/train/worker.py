"""What a Python worker keeps between tasks: the fit's fixed part and a model replica.

Spark hands any task of an executor to any idle worker, so only what is the same for every
partition may be kept. It is built on demand: idle workers end after a minute and new ones start.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sparkdl import buffers
from sparkdl._spark import broadcast_value, task_resources
from sparkdl.allreduce.codec import Cast, Codec, has_error_feedback
from sparkdl.allreduce.update import Combine
from sparkdl.data.columns import Structure, TablePlan
from sparkdl.layout import ParamLayout
from sparkdl.nn import serialize
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.numerics import Numerics, device_of_task, make_replica
from sparkdl.nn.objective import Objective
from sparkdl.optim.rule import UpdateRule
from sparkdl.train.executor_files import delete_fit, hold_files
from sparkdl.train.inner import InnerRule
from sparkdl.train.memory import exempt_objects, keep_freed_memory, trim_memory

if TYPE_CHECKING:
    from sparkdl.train.live import LiveModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSpec:
    """The fixed part of a fit: what every task of every iteration needs.

    Attributes:
        module: the module with its initial weights.
        objective: what is minimised.
        rule: regularisers, clipping and optimizer.
        combine: how the partitions' gradients become one.
        averaging: whether an average of the weights is kept.
        layout: layout of the flat vectors.
        features: how stored columns become the module's inputs.
        label: how stored columns become the loss's label.
        weighted: whether rows have weights.
        transform: applied to the inputs of each batch.
        seed: seed of the run.
        shuffle: whether each epoch has a fresh permutation.
        micro_batch_size: rows per forward pass, ``None`` for all at once.
        threads: torch threads per task.
        numerics: precision and the like.
        gradient_codec: how gradients travel.
        weights_codec: how weights travel between the owners of slices.
        inner: how partitions step by themselves; ``None`` if they send gradients.
        tables: parameters with row-sparse gradients whose optimizer leaves other rows as they are.
        scanned: tables with dense gradients, of which rows of zeros are not sent.
        plan: names of columns and rows, for errors.
    """

    module: nn.Module
    objective: Objective
    rule: UpdateRule
    combine: Combine
    averaging: bool
    layout: ParamLayout
    features: Structure
    label: Structure
    weighted: bool
    transform: Callable[[Any], Any] | None
    seed: int
    shuffle: bool
    micro_batch_size: int | None
    threads: int
    numerics: Numerics
    gradient_codec: Codec = "fp32"
    weights_codec: Cast = "fp32"
    inner: InnerRule | None = None
    tables: tuple[int, ...] = ()
    scanned: tuple[int, ...] = ()
    plan: TablePlan | None = None

    @property
    def error_feedback(self) -> bool:
        """Whether a partition adds what its codec leaves out to its next gradient."""
        return has_error_feedback(self.gradient_codec)

    @property
    def partition_state(self) -> bool:
        """Whether a partition keeps anything for its own next iteration."""
        return self.error_feedback or (self.inner is not None and self.inner.stateful)


class Worker:
    """A fit's state in this process.

    Args:
        read_spec: reads the fixed part; each call gives a module of its own.

    Attributes:
        spec: the fixed part.
        live: the whole model, where iterations change parts of it (``train/live.py``).
    """

    def __init__(self, read_spec: Callable[[], FitSpec]) -> None:
        self.spec = spec = read_spec()
        self._another_spec = read_spec
        self.live: LiveModel | None = None
        self._tasks = 0
        self._replicas: dict[str, FlatModule] = {}
        torch.set_num_threads(spec.threads)
        keep_freed_memory()

    @property
    def replica(self) -> FlatModule:
        """The model replica on the task's device, in training mode; its weights are loaded by every task.

        Spark gives any task to any process, so on an executor with several GPUs a process may come to
        have a replica on each.
        """
        device = device_of_task(task_resources())
        replica = self._replicas.get(device)
        if replica is None:
            module = self._another_spec().module if self._replicas else self.spec.module
            replica = make_replica(module.train(), self.spec.layout, self.spec.numerics, device)
            self._replicas[device] = replica
        return replica

    def end_task(self) -> None:
        """Exempt all objects so far from garbage collection, at the end of the first few tasks.

        Torch imports half of itself when its first optimizer steps, so the end of the first task of
        each kind is the earliest time that helps. Later on look after the memory now and then.
        """
        self._tasks += 1
        if self._tasks <= _TASKS_UNTIL_SETTLED:
            exempt_objects()
        elif self._tasks % _TASKS_UNTIL_TRIMMED == 0:
            trim_memory()


@dataclass(frozen=True, slots=True)
class FitRef:
    """What a task needs to get at its fit.

    Attributes:
        fit_id: unique id of the fit.
        broadcast_id: id of the broadcast that holds the pickled :class:`FitSpec`.
        in_memory: whether one process runs all tasks of an executor, and may hold in its memory what they
            leave for each other.
    """

    fit_id: str
    broadcast_id: int
    in_memory: bool = False

    def worker(self) -> Worker:
        """Return this process's state of the fit, made at first use."""
        worker = _workers.get(self.fit_id)
        if worker is None:
            while len(_workers) >= _MAX_FITS:
                _workers.popitem(last=False)
                gc.unfreeze()
            buffers.release()
            worker = Worker(lambda: serialize.loads(broadcast_value(self.broadcast_id, once=True)))
            _workers[self.fit_id] = worker
        elif torch.get_num_threads() != worker.spec.threads:
            torch.set_num_threads(worker.spec.threads)  # another fit's task ran here in between
        _workers.move_to_end(self.fit_id)
        hold_files(self.in_memory)
        return worker


def forget_fit(fit_id: str) -> None:
    """Delete what a fit has left on this executor and in this process."""
    delete_fit(fit_id)
    if _workers.pop(fit_id, None) is not None:
        buffers.release()
        gc.unfreeze()
        exempt_objects()


_workers: OrderedDict[str, Worker] = OrderedDict()
_TASKS_UNTIL_SETTLED = 6
_TASKS_UNTIL_TRIMMED = 64
_MAX_FITS = 2  # fits that run side by side, as in a CrossValidator with parallelism 2
