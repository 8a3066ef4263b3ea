"""Weights on their way to the tasks: inside the task itself, by a Spark broadcast, or there already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl import frame
from sparkdl._spark import broadcast_id, broadcast_value
from sparkdl.frame import Array, Frame, Packed, Parts

INLINE_BYTES = 64 << 10
"""Up to this size weights travel inside the stage's task binary, which Spark broadcasts anyway; a
broadcast of their own would cost more than it saves."""


@dataclass(frozen=True, slots=True)
class WeightsRef:
    """What a task needs to get at one version of the weights.

    Attributes:
        version: number of updates made.
        inline: the frame itself, or ``None`` if it is broadcast.
        broadcast_id: id of the broadcast, -1 if it is inline.
    """

    version: int
    inline: Packed | None
    broadcast_id: int = -1

    def data(self, *, once: bool = False) -> Packed:
        """Return the frame, which the process keeps unless it is wanted once; called in tasks."""
        return self.inline if self.inline is not None else broadcast_value(self.broadcast_id, once=once)

    def load(self) -> Frame:
        """Return params, buffers and counters as read-only arrays; called in tasks."""
        return frame.unpack(self.data())


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of the weights, published by the driver.

    Attributes:
        params: flat trainable parameters.
        buffers: flat floating-point buffers.
        counters: flat integer and boolean buffers.
        ref: what tasks use.
        broadcast: the PySpark broadcast behind it, if any.
        nbytes: bytes that each executor receives.
    """

    params: Array
    buffers: Array
    counters: Array
    ref: WeightsRef
    broadcast: Any
    nbytes: int

    @property
    def version(self) -> int:
        """Number of updates made."""
        return self.ref.version

    @property
    def broadcasts(self) -> list[Any]:
        """The broadcasts that a stage must name to use these weights."""
        return [] if self.broadcast is None else [self.broadcast]

    def release(self) -> None:
        """Delete the broadcast everywhere; only when no task can need it again."""
        if self.broadcast is not None:
            self.broadcast.destroy()


class RemoteWeights:
    """One version of the weights that the executors have; the driver fetches them when it needs them.

    Args:
        version: number of updates made.
        buffers: flat floating-point buffers.
        counters: flat integer and boolean buffers.
        nbytes: bytes that each executor received.
        fetch: copies the flat trainable parameters to the driver.
        publish: publishes a version as :func:`publish` does, for tasks that cannot rely on what is there.
    """

    def __init__(
        self,
        version: int,
        buffers: Array,
        counters: Array,
        nbytes: int,
        fetch: Callable[[], Array],
        publish: Callable[[int, Array, Array, Array], Weights],
    ) -> None:
        self.version = version
        self.buffers = buffers
        self.counters = counters
        self.nbytes = nbytes
        self._fetch = fetch
        self._publish = publish
        self._params: Array | None = None
        self._published: Weights | None = None

    @property
    def params(self) -> Array:
        """Flat trainable parameters; fetched at first use.

        Raises:
            TaskError: if they cannot be fetched.
        """
        if self._params is None:
            self._params = self._fetch()
        return self._params

    @property
    def ref(self) -> WeightsRef:
        """What tasks use; published at first use.

        Raises:
            TaskError: if they cannot be fetched.
        """
        if self._published is None:
            self._published = self._publish(self.version, self.params, self.buffers, self.counters)
        return self._published.ref

    @property
    def broadcasts(self) -> list[Any]:
        """The broadcasts that a stage must name to use ``ref``, if it was asked for."""
        return self._published.broadcasts if self._published is not None else []

    def release(self) -> None:
        """Delete what was published; only when no task can need it again."""
        if self._published is not None:
            self._published.release()


def pack(version: int, params: Array, buffers: Array, counters: Array, **more: Array) -> Parts:
    """Pack a version of the weights, and what else goes with them."""
    arrays = {"params": params, "buffers": buffers, "counters": counters, **more}
    return frame.pack({"kind": "weights", "version": version}, arrays)


def publish(sc: Any, version: int, params: Array, buffers: Array, counters: Array) -> Weights:
    """Make a version of the weights available to all tasks."""
    data = frame.join(pack(version, params, buffers, counters))
    if len(data) <= INLINE_BYTES:
        return Weights(params, buffers, counters, WeightsRef(version, data), None, len(data))
    broadcast = sc.broadcast(data)
    ref = WeightsRef(version, None, broadcast_id(broadcast))
    return Weights(params, buffers, counters, ref, broadcast, len(data))
