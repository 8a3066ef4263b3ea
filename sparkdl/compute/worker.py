"""State of a Python worker between tasks: the fit's fixed part and a model replica.

Spark hands any task of an executor to any idle worker, so only what is the same for every
partition may be kept. It is built on demand: idle workers end after a minute and new ones start.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl._spark.tasks import task_resources
from sparkdl.access.base import BytesRef
from sparkdl.compute.dependence import Lookout
from sparkdl.compute.live_model import LiveModel
from sparkdl.compute.local_store import LocalStore, fit_folder
from sparkdl.compute.memory import exempt_objects, keep_freed_memory, trim_memory
from sparkdl.compute.row_owner import RowOwner
from sparkdl.compute.spec import FitSpec
from sparkdl.data.store.partition import delete_store
from sparkdl.keyed.memory import RowMemory
from sparkdl.nn import serialize
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.lightning import to_train
from sparkdl.nn.numerics import Replica, device_of_task
from sparkdl.wire import buffers
from sparkdl.wire.private import local_folders


class Worker:
    """A fit's state in this process; ``read_spec`` reads the fixed part, each time with a module of its own.

    ``files`` are what tasks leave on this executor for later ones, ``partition_files`` what partitions keep
    for their own next iteration, ``row_files`` what owners of rows keep for other processes.
    """

    def __init__(
        self,
        read_spec: Callable[[], FitSpec],
        files: LocalStore,
        partition_files: LocalStore,
        row_files: LocalStore,
    ) -> None:
        self.spec = spec = read_spec()
        self._another_spec = read_spec
        self.live: LiveModel | None = None  # where every process updates all of the model
        # By number and count of ranks, the rows of embedding variables that a rank owns, and their bound.
        self.owners: dict[tuple[int, int], RowOwner] = {}
        self.row_memory = (
            None if spec.row_memory is None else RowMemory(spec.row_memory, [*map(str, local_folders())])
        )
        self.files = files
        self.partition_files = partition_files
        self.row_files = row_files
        self._tasks = 0
        self._replicas: dict[str, FlatModule] = {}
        self._lookouts: dict[FlatModule, Lookout] = {}
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
            replica = Replica(to_train(module), self.spec.layout, self.spec.numerics, device)
            self._replicas[device] = replica
            self._lookouts[replica] = Lookout(replica, self.spec, self._another_spec)
        return replica

    def look(self, replica: FlatModule, batch: Batch, frozen: Sequence[int]) -> None:
        """Look, now and then, whether forward has changed what cannot travel; raises ModelError naming it."""
        self._lookouts[replica].step(batch, frozen)

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

    def parts(self) -> list[weakref.ref[Any]]:
        """Return weak references to what takes memory: its modules and their parameters."""
        modules = [replica.module for replica in self._replicas.values()]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        return [weakref.ref(part) for part in (self, *self._replicas.values(), *modules, *parameters)]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold in memory what tasks leave for a while, for nobody but this process wants it before."""
        with self.files.holding(), self.partition_files.holding():
            yield


@dataclass(frozen=True, slots=True)
class FitRef:
    """What a task needs to get at its fit."""

    fit_id: str  # unique id of the fit
    spec: BytesRef  # the pickled :class:`FitSpec`
    # whether one process runs all tasks of an executor, and may hold in its memory what they leave for each
    # other
    in_memory: bool = False

    def worker(self) -> Worker:
        """Return this process's state of the fit, made at first use."""
        # Which a query has left in a process that both share: an error would be told without its cause.
        os.environ.pop("SPARK_SIMPLIFIED_TRACEBACK", None)
        worker = _workers.get(self.fit_id)
        if worker is None:
            while len(_workers) >= MOST_FITS:
                release_fit(next(iter(_workers)))
            buffers.release()
            worker = Worker(lambda: serialize.loads(self.spec.read(once=True)), *_stores(self.fit_id))
            _workers[self.fit_id] = worker
        elif torch.get_num_threads() != worker.spec.threads:
            torch.set_num_threads(worker.spec.threads)  # another fit's task ran here in between
        _workers.move_to_end(self.fit_id)
        worker.files.in_memory = self.in_memory
        return worker


def forget_fit(fit_id: str, stores: Sequence[str] = ()) -> None:
    """Delete a fit's files on this executor and its objects in this process, and stores of rows."""
    for name in stores:
        delete_store(name)
    for store in (*_files.pop(fit_id, ()), LocalStore(fit_folder(fit_id))):
        store.delete()
    release_fit(fit_id)


def release_fit(fit_id: str) -> None:
    """Release a fit's objects in this process; files stay."""
    worker = _workers.pop(fit_id, None)
    if worker is None:
        return
    parts = worker.parts()
    del worker
    buffers.release()
    if any(part() is not None for part in parts):
        # They refer to each other. To walk all of torch's objects, which the collector looks at again then,
        # takes a quarter of a second.
        gc.unfreeze()
        exempt_objects()


def stores_in(folder: str) -> tuple[LocalStore, LocalStore, LocalStore]:
    """Return what tasks leave for later ones, what partitions keep, and rows of embedding variables.

    The second is never in memory, for it should outlive the process; the third has in memory another form.
    """
    model, partitions, rows = (LocalStore(f"{folder}/{name}") for name in ("model", "partitions", "rows"))
    return model, partitions, rows


def _stores(fit_id: str) -> tuple[LocalStore, LocalStore, LocalStore]:
    """Return a fit's frames, which stay if other fits take this process's memory for their modules."""
    if fit_id not in _files:
        while len(_files) >= _MAX_STORES:
            _files.popitem(last=False)
        _files[fit_id] = stores_in(fit_folder(fit_id))
    return _files[fit_id]


_workers: OrderedDict[str, Worker] = OrderedDict()
_files: OrderedDict[str, tuple[LocalStore, LocalStore, LocalStore]] = OrderedDict()
_MAX_STORES = 16
_TASKS_UNTIL_SETTLED = 6
_TASKS_UNTIL_TRIMMED = 64
MOST_FITS = 4  # fits that run side by side, as in a CrossValidator with parallelism 4
