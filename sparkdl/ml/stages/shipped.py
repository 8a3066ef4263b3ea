"""A module on its way to the tasks of transforms; the Python workers of an executor share its weights."""

from __future__ import annotations

import fcntl
import gc
import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparkdl._spark.tasks import task_resources
from sparkdl.access import models_in
from sparkdl.access.models import Lasting
from sparkdl.compute.local_store import write_file
from sparkdl.compute.memory import exempt_objects
from sparkdl.nn import serialize
from sparkdl.nn.numerics import device_of_task
from sparkdl.nn.prepack import prepack
from sparkdl.wire import private

_FOLDER = "sparkdl-modules"
_MAPPED_BYTES = 8 << 20  # smaller modules are read faster than they are written
_KEPT_BYTES = 1 << 30  # of modules in a process, and of their files on an executor, besides the latest
_TASKS_UNTIL_SETTLED = 3


def ship(spark: Any, module: nn.Module) -> Lasting:
    """Make a module available to tasks of transforms; SerializationError if it cannot be pickled."""
    return models_in(spark).lasting(serialize.dumps_module(module))


@dataclass(slots=True)
class Loaded:
    """A module in this Python worker."""

    module: nn.Module
    device: str
    bytes: int
    tasks: int = 0

    def end_task(self) -> None:
        """Exempt all objects so far from garbage collection, at the end of the first few tasks.

        PySpark's daemon collects after every task, and walking torch's objects takes longer than many
        a task.
        """
        if self.tasks < _TASKS_UNTIL_SETTLED:
            self.tasks += 1
            exempt_objects()


_models: OrderedDict[tuple[str, str], Loaded] = OrderedDict()


def load_shipped(shipped: Lasting) -> Loaded:
    """Return this process's copy of a module, made at first use: Spark gives any task to any worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.cpus() != torch.get_num_threads():
        torch.set_num_threads(context.cpus())
    device = device_of_task(task_resources())
    model = _models.get((shipped.digest, device))
    if model is None:
        module, size = _read(shipped)
        while _models and size + sum(other.bytes for other in _models.values()) > _KEPT_BYTES:
            _models.popitem(last=False)
            gc.unfreeze()
        # Without packed copies, of which each process would have its own.
        module = prepack(module.eval().to(device), copies=False)
        model = _models[shipped.digest, device] = Loaded(module, device, size)
    _models.move_to_end((shipped.digest, device))
    return model


def _read(shipped: Lasting) -> tuple[nn.Module, int]:
    """Return a module and the size of its bytes, which are mapped if they are many."""
    folder = private.executor_folder(_FOLDER)
    if folder is None:
        data = shipped.read()
        return serialize.loads_module(data), len(data)
    path = folder / shipped.digest
    with open(folder / "lock", "ab", opener=private.opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process reads and writes it, and the others wait
        if not path.exists():
            data = shipped.read()
            if len(data) < _MAPPED_BYTES or not serialize.can_map(data):
                return serialize.loads_module(data), len(data)
            _discard(folder, len(data))
            try:
                write_file(str(path), [data])
            except OSError:  # the disk has no room
                return serialize.loads_module(data), len(data)
        os.utime(path)
        return serialize.map_module(path), path.stat().st_size


def _discard(folder: Path, size: int) -> None:
    """Delete the files that were used longest ago, until so many bytes more are not too many.

    Processes that have mapped one keep it.
    """
    files = [file for file in folder.iterdir() if file.name != "lock"]
    files.sort(key=lambda file: file.stat().st_mtime)
    left = sum(file.stat().st_size for file in files)
    for file in files:
        if left + size <= _KEPT_BYTES:
            return
        left -= file.stat().st_size
        with suppress(FileNotFoundError):
            file.unlink()
