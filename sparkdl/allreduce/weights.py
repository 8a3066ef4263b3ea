"""Weights on their way to the tasks: inside the task itself, or by a Spark broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkdl import frame
from sparkdl._spark import broadcast_id, broadcast_value
from sparkdl.frame import Array, Buffer, Frame, Parts

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
    inline: Buffer | None
    broadcast_id: int = -1

    def data(self) -> Buffer:
        """Return the frame; called in tasks."""
        return self.inline if self.inline is not None else broadcast_value(self.broadcast_id)

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
    def broadcasts(self) -> list[Any]:
        """The broadcasts that a stage must name to use these weights."""
        return [] if self.broadcast is None else [self.broadcast]

    def release(self) -> None:
        """Delete the broadcast everywhere; only when no task can need it again."""
        if self.broadcast is not None:
            self.broadcast.destroy()


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
