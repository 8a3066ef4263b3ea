"""The fixed part of a run and its weights on the executors, and the threads of its tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdl.access.base import Access, Published
from sparkdl.allreduce.cluster import Cluster
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.state import Weights
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.worker import FitRef
from sparkdl.data.store.build import PartitionStore
from sparkdl.nn import serialize
from sparkdl.nn.flat import FlatModule
from sparkdl.session import Executors
from sparkdl.train.leaving import unless_under_way
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.recipe import Recipe

if TYPE_CHECKING:
    from sparkdl.train.passes.evaluate import Evaluator


@dataclass(slots=True, kw_only=True)
class Shipped:
    """What is on the executors."""

    access: Access  # the cluster
    store: PartitionStore  # the rows
    fit: FitRef  # how tasks find the fixed part
    sent: Published  # the fixed part
    profile: Any  # resource profile of the tasks
    cluster: Cluster  # what the engine asks of Spark
    weights: Weights  # the first weights
    release_model: Callable[[], None]  # deletes the model that there is at the end

    @contextmanager
    def evaluator(self, config: TrainConfig) -> Iterator[Evaluator]:
        """Make an evaluator for a while."""
        from sparkdl.train.passes.evaluate import Evaluator  # with torchmetrics, which other fits do without

        size = config.validation_batch_size
        evaluator = Evaluator(self.access, self.fit, self.sent, config.metrics, size, self.profile)
        try:
            yield evaluator
        finally:
            if self.access.is_alive():
                evaluator.release()

    def engine(self, recipe: Recipe, name: str) -> Engine:
        """Return the engine of a fit's steps; ConfigError if the exchange does not suit session or model."""
        wanted = recipe.wanted()
        exchange = wanted.choose(self.access, len(self.store.partitions))
        return Engine(
            cluster=self.cluster,
            store=self.store,
            fit=self.fit,
            sent=self.sent,
            route=lambda store, fit: wanted.route(exchange, self.access, store, fit, self.profile),
            leaves_files=recipe.keeps_on_partitions,
            name=f"sparkdl fit {name}",
        )


@contextmanager
def shipped(access: Access, store: PartitionStore, spec: FitSpec) -> Iterator[Shipped]:
    """Send the fixed part and the module's weights; release everything at the end."""
    threads = threads_per_task(store.executors, len(store.partitions))
    spec = replace(spec, threads=threads)
    data_of_spec = serialize.dumps(spec, "the training setup")
    first = FlatModule(serialize.loads(data_of_spec).module, spec.layout)
    sent = access.send(data_of_spec)
    ship: Shipped | None = None
    under_way: BaseException | None = None
    try:
        profile = access.profile(threads)
        cluster = Cluster(access, profile)
        weights = Weights(cluster, first.params.numpy(), first.buffers(), first.counters())
        ship = Shipped(
            access=access,
            store=store,
            fit=FitRef(uuid.uuid4().hex, sent.ref),
            sent=sent,
            profile=profile,
            cluster=cluster,
            weights=weights,
            release_model=weights.release,
        )
        yield ship
    except BaseException as error:
        under_way = error
        raise
    finally:
        if access.is_alive():  # the user may have stopped Spark from within
            with unless_under_way(under_way, "The run's data on the executors could not be deleted"):
                if ship is not None:
                    ship.release_model()
                sent.release()


def threads_per_task(executors: Executors, partitions: int) -> int:
    """Divide an executor's cores among the tasks that run on it at a time.

    One partition per executor gives one task with all cores; more partitions share them. Where
    ``spark.task.cpus`` gives a task several cores, it has at least those.
    """
    tasks = min(-(-partitions // executors.count), executors.tasks)
    return max(1, executors.cores // tasks)
