"""A task's requests to Spark: the values of broadcasts, and its resources."""

from __future__ import annotations

from typing import Any


def broadcast_id(broadcast: Any) -> int:
    """Return the id by which a task finds a broadcast; called on the driver."""
    number: int = broadcast._jbroadcast.id()
    return number


def broadcast_value(number: int, *, once: bool = False) -> Any:
    """Return the value of a broadcast that the stage of this task names; called in tasks.

    Capturing the ``Broadcast`` object itself would register it with the next job that any thread of the
    application pickles. With ``once``, this process does not keep the value, bytes or a ``bytearray`` that
    the caller may overwrite: it can be read again from the executor's disk.
    """
    from pyspark import broadcast

    found = broadcast._from_id(number)
    return read_once(found) if once else found.value


def read_once(broadcast: Any) -> Any:
    """Return the value of a broadcast, of which this process keeps no copy where it can be read again."""
    value = broadcast.value
    if getattr(broadcast, "_path", None) is None:  # with encryption there is no file: this is the only copy
        return bytes(value)
    vars(broadcast).pop("_value", None)
    return value


def task_resources() -> dict[str, list[str]]:
    """Return the addresses of the resources, such as GPUs, that Spark gave this task, by name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    return {name: list(resource.addresses) for name, resource in resources.items()}


def in_task() -> bool:
    """Return whether this process runs a task at the moment."""
    from pyspark import TaskContext

    return TaskContext.get() is not None


def partition_id() -> int:
    """Return the partition of the task that runs here; 0 outside of tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
