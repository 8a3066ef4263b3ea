"""The driver's view of executors and of the blocks that they hold."""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import Any

from sparkdl._spark.frames import JavaObject, java_class

_STORAGE = "org.apache.spark.storage"
DRIVER = "driver"
"""Id of the driver where executors have ids."""


class BlockManager:
    """Asks Spark's block manager."""

    def __init__(self, jvm: Any, context: JavaObject) -> None:
        self._jvm = jvm
        self._context = context

    def executors(self) -> dict[str, str]:
        """Return the executors besides the driver, by id, as an RDD names the places where it is to run."""
        # One that is being decommissioned is there, but runs no further task. It is no peer where Spark moves
        # its blocks (``spark.storage.decommission.enabled``).
        peers = self._block_manager_master.getPeers(self._driver_block_manager)
        # As text all of them take one round trip: BlockManagerId(<executor>, <host>, <port>, <topology>).
        listed = str(peers.mkString("\n"))
        found = (line.removeprefix("BlockManagerId(").split(", ") for line in listed.splitlines())
        return {name: f"executor_{host}_{name}" for name, host, *_ in found}

    def places(self, frames: JavaObject) -> list[str]:
        """Return the id of an executor that holds each partition of a persisted RDD, empty if none does.

        One that is about to leave does not count.
        """
        block, master = self._block_id, self._block_manager_master
        known = {*self.executors(), DRIVER}  # which runs tasks itself in local mode
        found = []
        for partition in range(frames.getNumPartitions()):
            locations = master.getLocations(block(frames.id(), partition))
            holders = [locations.apply(n).executorId() for n in range(locations.size())]
            found.append(next((name for name in holders if name in known), ""))
        return found

    def drop(self, rdd_id: int, partition: int) -> None:
        """Forget a cached block wherever it is: the next job computes it again."""
        master = self._block_manager_master
        block = self._block_id(rdd_id, partition)
        master.removeBlock(block)
        deadline = time.monotonic() + 10
        while master.getLocations(block).size() and time.monotonic() < deadline:
            time.sleep(0.01)  # executors delete the block in their own time

    # To look one of these up takes 10 ms.

    @cached_property
    def _block_id(self) -> JavaObject:
        return java_class(self._jvm, f"{_STORAGE}.RDDBlockId")

    @cached_property
    def _block_manager(self) -> JavaObject:
        return self._getter(
            self._context.env(), "org.apache.spark.SparkEnv", "blockManager", f"{_STORAGE}.BlockManager"
        )

    @cached_property
    def _block_manager_master(self) -> JavaObject:
        manager = self._block_manager
        return self._getter(manager, f"{_STORAGE}.BlockManager", "master", f"{_STORAGE}.BlockManagerMaster")

    @cached_property
    def _driver_block_manager(self) -> JavaObject:
        manager = self._block_manager
        return self._getter(
            manager, f"{_STORAGE}.BlockManager", "blockManagerId", f"{_STORAGE}.BlockManagerId"
        )

    def _getter(self, obj: JavaObject, owner: str, method: str, returns: str) -> JavaObject:
        """Call a method without arguments by its exact signature.

        Py4J would list all methods of the class first, which fails for these two: some name types
        that are not on the class path of every Spark distribution.
        """
        find = partial(java_class, self._jvm)
        class_of = find("java.lang.Class").forName
        handle = (
            find("java.lang.invoke.MethodHandles")
            .publicLookup()
            .findVirtual(
                class_of(owner), method, find("java.lang.invoke.MethodType").methodType(class_of(returns))
            )
        )
        arguments = find("java.util.ArrayList")()
        arguments.add(obj)
        return handle.invokeWithArguments(arguments)
