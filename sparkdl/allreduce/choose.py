"""Choosing plan and transport by sizes and session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkdl._spark import FrameJobs, JavaObject
from sparkdl.allreduce.engine import Route
from sparkdl.allreduce.plans.base import LONGEST_GROUP, Plan
from sparkdl.allreduce.plans.driver import ThroughDriver, count_shards
from sparkdl.allreduce.plans.replicated import Replicated
from sparkdl.allreduce.plans.sharded import Sharded
from sparkdl.allreduce.transport.shuffle import ShuffleTransport
from sparkdl.allreduce.transport.two_jobs import TwoJobTransport
from sparkdl.codec import Cast
from sparkdl.compute.live_model import changes_to_keep
from sparkdl.compute.worker import FitRef
from sparkdl.data.dataset import Store
from sparkdl.exceptions import ConfigError
from sparkdl.layout import ParamLayout

Exchange = Literal["auto", "replicated", "sharded", "driver"]
"""How gradients become weights."""

TransportName = Literal["auto", "shuffle"]
"""How messages travel within a group."""

_REPLICATED_BYTES = 32 << 20
"""Up to so many bytes of gradients per task and iteration the replicated plan is the automatic choice."""

_MOST_SHARD_BYTES = 256 << 20
"""Shards of up to this size may be gathered."""

_RETURNED_BYTES = 16 << 20
"""Weights of up to this size go to the driver at the end of each group."""

_TABLES_BYTES = 16 << 20
"""From tables of this size on row-sparse gradients make the replicated plan the automatic choice."""

_REST = 4
"""And if everything else is at most one part in so many of the weights: it goes from all to all, too."""

_ROWS_BYTES = 8 << 20
"""About what the rows of a large batch take, of all partitions; nobody knows beforehand."""

_LOCALITY = "spark.shuffle.reduceLocality.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a fit asks of the exchange.

    Attributes:
        exchange: which one the user wants.
        layout: layout of the flat vectors.
        reductions: sums over all shards that an update needs.
        stateful: whether the optimizer keeps state, or weights are averaged.
        averaging: whether weights are averaged.
        tables: parameters with row-sparse gradients, whose optimizer leaves other rows as they are, if
            nothing else changes all weights in each step.
        weights_codec: how weights travel from the owners of shards.
        num_shards: number of parameter-sync tasks; ``None`` to choose it.
        stragglers: whether slow tasks may leave rows out.
    """

    exchange: Exchange
    layout: ParamLayout
    reductions: int
    stateful: bool
    averaging: bool
    tables: tuple[int, ...]
    weights_codec: Cast
    num_shards: int | None
    stragglers: bool

    @property
    def suits_rows(self) -> bool:
        """Whether most of the weights are large tables of which a batch touches few rows."""
        layout = self.layout
        sparse = sum(layout.params[index].numel for index in self.tables)
        large = sparse * layout.itemsize >= _TABLES_BYTES
        return large and (layout.numel - sparse) * _REST <= layout.numel

    def choose(self, sc: Any, ranks: int) -> Exchange:
        """Return the exchange that is wanted, or the one that suits the size.

        Args:
            sc: the SparkContext.
            ranks: number of partitions.

        Raises:
            ConfigError: if groups are wanted in a session that would run their tasks away from their rows.
        """
        wanted = self.exchange if self.weights_codec == "fp32" else "sharded"
        moves = sc.getConf().get(_LOCALITY, "true") == "true" and not sc.master.startswith("local[")
        if wanted in ("replicated", "sharded") and moves:
            raise ConfigError(
                f"exchange={wanted!r} needs a session with {_LOCALITY}=false, which is read when Spark "
                "starts: make it with sparkdl.session.builder(...), or set it in your confs",
                code="config-cluster",
            )
        nbytes = self.layout.nbytes
        fits = nbytes <= ranks * _MOST_SHARD_BYTES
        if wanted == "sharded" and not fits:
            raise ConfigError(
                f"exchange='sharded': {nbytes >> 20} MiB of weights over {ranks} partitions are shards of "
                f"more than {_MOST_SHARD_BYTES >> 20} MiB; give the Dataset a larger num_partitions, or "
                "take exchange='driver'"
            )
        if wanted != "auto":
            return wanted
        if moves or self.num_shards is not None or self.stragglers:
            return "driver"
        if self.suits_rows or ranks * nbytes <= _REPLICATED_BYTES:
            return "replicated"
        return "sharded" if fits else "driver"

    def plan(self, exchange: Exchange, ranks: int, changes: int) -> Plan:
        """Return the plan of an exchange.

        Args:
            exchange: which one; not ``auto``.
            ranks: number of partitions.
            changes: see :class:`Replicated`.
        """
        layout = self.layout
        # Averaged buffers are kept by the driver, which sees those of a group's last iteration only.
        longest = 1 if self.averaging and layout.buffers else LONGEST_GROUP
        if exchange == "driver":
            count = count_shards(layout, ranks, self.num_shards, self.reductions)
            return ThroughDriver(layout=layout, shards=count, keeps=self.stateful, reductions=self.reductions)
        if exchange == "sharded":
            return Sharded(layout=layout, shards=ranks, reductions=self.reductions, longest_group=longest)
        returned = layout.nbytes <= _RETURNED_BYTES
        dense = layout.nbytes - sum(layout.params[i].numel for i in self.tables) * layout.itemsize
        return Replicated(
            layout=layout,
            shards=ranks,
            keeps=self.stateful or not returned,
            returns_weights=returned,
            message_bytes=min(layout.nbytes, dense + _ROWS_BYTES // ranks),
            group_seconds=1.0 if returned else 8.0,  # all that stays is persisted at a group's end
            longest_group=longest,
            changes=changes,
        )

    def route(
        self, exchange: Exchange, jobs: FrameJobs, store: Store, fit: FitRef, profile: JavaObject | None
    ) -> Route:
        """Return plan and transport of an exchange over a store.

        Args:
            exchange: which one, as :meth:`choose` has chosen for the whole fit.
            jobs: Spark access.
            store: the partition store.
            fit: the fixed part of the fit.
            profile: resource profile of the tasks.
        """
        ranks = len(store.partitions)
        rows = bool(self.tables)
        changes = 0 if fit.in_memory else changes_to_keep(store.executors.cores, rows=rows)
        plan = self.plan(exchange, ranks, changes)
        make = TwoJobTransport if exchange == "driver" else ShuffleTransport
        return Route(plan, make(jobs, store, fit, profile))
