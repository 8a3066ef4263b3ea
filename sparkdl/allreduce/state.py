"""The state that one group of iterations leaves for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparkdl.access.base import Persisted, Published
from sparkdl.allreduce.cluster import Cluster
from sparkdl.allreduce.row_layers import Layer, RowLayers
from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.compute.start import ModelVersion
from sparkdl.wire import frame
from sparkdl.wire.frame import Array


class Weights:
    """One version of the weights: on the driver, or on the executors until the driver wants them.

    ``params`` are flat trainable parameters, or how to fetch them; ``buffers`` flat floating-point buffers,
    ``counters`` flat integer and boolean ones.
    """

    def __init__(
        self, cluster: Cluster, params: Array | Callable[[], Array], buffers: Array, counters: Array
    ) -> None:
        self._cluster = cluster
        self._params: Array | None = params if isinstance(params, np.ndarray) else None
        self._fetch = params if not isinstance(params, np.ndarray) else None
        self.buffers = buffers
        self.counters = counters
        self.published: Published | None = None  # what tasks may name, once there is a need

    @classmethod
    def of(cls, cluster: Cluster, snapshot: Snapshot) -> Weights:
        """Return the weights of a snapshot."""
        return cls(cluster, snapshot.params, snapshot.buffers, snapshot.counters)

    @property
    def params(self) -> Array:
        """Flat trainable parameters, fetched at first use; raises TaskError if they cannot be fetched."""
        if self._params is None:
            assert self._fetch is not None
            self._params = self._fetch()
        return self._params

    @property
    def snapshot(self) -> Snapshot:
        """Weights and buffers, fetched at first use; raises TaskError if they cannot be fetched."""
        return Snapshot(self.params, self.buffers, self.counters)

    def publish(self) -> Published:
        """Make them available to tasks, once; raises TaskError if they cannot be fetched."""
        if self.published is None:
            arrays = {"params": self.params, "buffers": self.buffers, "counters": self.counters}
            self.published = self._cluster.publish(frame.pack({"kind": "weights"}, arrays))
        return self.published

    def release(self) -> None:
        """Delete the published weights; call it only when no task can need them again."""
        if self.published is not None:
            self.published.release()


@dataclass(frozen=True, slots=True)
class ModelState:
    """What one group of iterations leaves for the next."""

    weights: Weights  # weights and buffers
    # what Spark keeps for each shard: the optimizer's state and the averaged weights, and the weights where
    # the driver does not have them; ``None`` before the first iteration, and always if there is nothing
    persisted: Persisted | None = None
    outdated: Weights | None = None  # the weights before these, which the tasks that made ``persisted`` name
    average_buffers: Array | None = None  # averaged floating-point buffers, if weights are averaged
    # the model's version on the executors that made it; ``None`` if they have no copy
    version: ModelVersion | None = None
    made_of: ModelVersion | None = None  # the version that its group started from
    # optimizer state before these weights, as the driver sent it to the same tasks
    seed: Sequence[Published] = ()
    # rows of embedding variables that ``persisted`` does not have, since they have not changed
    layers: RowLayers = field(default_factory=RowLayers)

    @property
    def named(self) -> tuple[Published, ...]:
        """What the tasks that made ``persisted`` name."""
        sent = None if self.outdated is None else self.outdated.published
        return (*([] if sent is None else [sent]), *self.seed)

    def release(self, cluster: Cluster) -> None:
        """Delete weights and optimizer state from the executors."""
        self.weights.release()
        self.release_outdated(cluster)

    def release_outdated(self, cluster: Cluster, after: RowLayers | None = None) -> None:
        """Delete everything that is obsolete after the next iteration is completed."""
        needed = {id(layer.persisted) for layer in after.below} if after is not None else set()
        for layer in (*self.layers.below, Layer(self.persisted, self.layers.iteration, self.named)):
            if layer.persisted is not None and id(layer.persisted) in needed:
                continue
            if layer.persisted is not None:
                cluster.unpersist(layer.persisted)
            for sent in layer.named:
                sent.release()
