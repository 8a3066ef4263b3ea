"""Choosing plan and transport by sizes and session."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from sparkdl.access.base import LOCALITY, Access
from sparkdl.allreduce.engine import Route
from sparkdl.allreduce.plan import LONGEST_GROUP, Plan
from sparkdl.allreduce.plans.driver import ThroughDriver, count_shards
from sparkdl.allreduce.plans.replicated import Replicated
from sparkdl.allreduce.plans.sharded import Sharded
from sparkdl.allreduce.plans.tabled import Tabled
from sparkdl.allreduce.transport.base import Transport
from sparkdl.allreduce.transport.direct.task import Rendezvous
from sparkdl.allreduce.transport.direct.transport import DirectTransport
from sparkdl.allreduce.transport.stages import ShuffleTransport, TwoJobTransport
from sparkdl.compute.live_model import changes_to_keep
from sparkdl.compute.worker import FitRef
from sparkdl.data.store.build import PartitionStore
from sparkdl.exceptions import ConfigError
from sparkdl.session import PATIENCE, TRANSPORT, WAIT
from sparkdl.wire.codec import Cast
from sparkdl.wire.layout import ParamLayout

Exchange = Literal["auto", "replicated", "sharded", "driver"]
"""How gradients become weights."""

TransportName = Literal["auto", "shuffle", "direct"]
"""How messages travel within a group."""

_ENCRYPTING = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)
"""By these a session asks for encryption on the wire, which connections between tasks do not have."""

_REPLICATED_BYTES = 32 << 20
"""Up to so many bytes of gradients per task and iteration the replicated plan is the automatic choice."""

_REPLICATED_DIRECTLY = 8 << 20
"""The same where tasks exchange directly, and an update needs no sum over all weights: the second exchange of
the sharded plan takes 1 ms there, and each task updates its shard in place of all weights."""

_MOST_SHARD_BYTES = 256 << 20  # shards of up to this size may be gathered

_RETURNED_BYTES = 16 << 20  # weights of up to this size go to the driver at the end of each group

_TABLES_BYTES = 16 << 20
"""From tables of this size on row-sparse gradients make the replicated plan the automatic choice."""

_REST = 4
"""And if everything else is at most one part in so many of the weights: it goes from all to all, too."""

_ROWS_BYTES = 8 << 20  # about what the rows of a large batch take, of all partitions; nobody knows beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a fit asks of the exchange."""

    exchange: Exchange  # which one the user wants
    layout: ParamLayout  # of the flat vectors
    reductions: int  # sums over all shards that an update needs
    stateful: bool  # whether the optimizer keeps state, or weights are averaged
    averaging: bool  # whether weights are averaged
    # parameters with row-sparse gradients, whose optimizer leaves other rows as they are, if nothing else
    # changes all weights in each step
    tables: tuple[int, ...]
    weights_codec: Cast  # how weights travel from the owners of shards
    num_shards: int | None  # number of parameter-sync tasks; ``None`` to choose it
    stragglers: bool  # whether slow tasks may leave rows out
    transport: TransportName = "auto"  # how messages are to travel within a group
    keyed: tuple[str, ...] = ()  # names of embedding variables
    elastic: bool = False  # whether there may be more partitions later

    @property
    def suits_rows(self) -> bool:
        """Whether most of the weights are large tables of which a batch touches few rows."""
        layout = self.layout
        sparse = sum(layout.params[index].numel for index in self.tables)
        large = sparse * layout.itemsize >= _TABLES_BYTES
        return large and (layout.numel - sparse) * _REST <= layout.numel

    @property
    def _exchange(self) -> Exchange:
        """The exchange that is wanted: only with the sharded one weights travel with a codec."""
        return self.exchange if self.weights_codec == "fp32" else "sharded"

    def check(self, access: Access) -> None:
        """Check what is wanted against the session, before any work starts."""
        if not access.has_sync:
            self._check_without_sync()
        if self._exchange in ("replicated", "sharded") and access.moves_tasks:
            raise ConfigError(
                f"exchange={self._exchange!r} needs a session with {LOCALITY}=false, which is read when "
                "Spark starts: make it with sparkdl.session.builder(...), or set it in your confs",
                code="config-cluster",
            )
        if self.keyed and access.moves_tasks:
            raise ConfigError(
                f"the embedding variable {self.keyed[0]!r} needs a session with {LOCALITY}=false, which is "
                "read when Spark starts: make it with sparkdl.session.builder(...), or set it in your confs",
                code="config-cluster",
            )
        self.exchanges_directly(access, self._exchange)

    def choose(self, access: Access, ranks: int) -> Exchange:
        """Return the exchange that is wanted, or the one that suits the size."""
        self.check(access)
        wanted, nbytes = self._exchange, self.layout.nbytes
        most_of_shard = self.layout.largest_shard(ranks)
        fits = nbytes <= ranks * _MOST_SHARD_BYTES and most_of_shard <= _MOST_SHARD_BYTES
        if wanted == "sharded" and not fits and nbytes <= ranks * _MOST_SHARD_BYTES:
            raise ConfigError(
                f"exchange='sharded': the optimizer needs whole tensors, so that a shard would have "
                f"{most_of_shard >> 20} MiB, more than {_MOST_SHARD_BYTES >> 20} MiB; take "
                "exchange='replicated', where every process has all weights"
            )
        if wanted == "sharded" and not fits:
            raise ConfigError(
                f"exchange='sharded': {nbytes >> 20} MiB of weights over {ranks} partitions are shards of "
                f"more than {_MOST_SHARD_BYTES >> 20} MiB; give the Dataset a larger num_partitions, or "
                "take exchange='driver'"
            )
        if self.keyed and self.reductions and wanted == "sharded":
            raise ConfigError(
                "exchange='sharded' with embedding variables needs an optimizer without sums over all "
                "weights (not LARS, LAMB or LBFGS); take exchange='replicated'"
            )
        if wanted == "auto" and self.keyed and self.reductions:
            return "replicated"
        if wanted != "auto":
            return wanted
        if access.moves_tasks or self.num_shards is not None or self.stragglers:
            return "driver"
        shards_pay_early = not self.reductions and self.exchanges_directly(access, "sharded")
        most = _REPLICATED_DIRECTLY if shards_pay_early else _REPLICATED_BYTES
        alone = ranks == 1 and not self.elastic
        if alone or self.suits_rows or ranks * nbytes <= most:
            return "replicated"
        if not fits and self.layout.uncut:  # a shard would be as large in any plan
            return "replicated"
        if fits or not access.has_sync:
            return "sharded"
        if self.keyed:
            raise ConfigError(
                f"embedding variables beside {nbytes >> 20} MiB of other weights over {ranks} partitions: "
                f"shards of more than {_MOST_SHARD_BYTES >> 20} MiB; give a larger num_partitions, "
                "or take exchange='replicated', where every process has all weights"
            )
        return "driver"

    def _check_without_sync(self) -> None:
        """Check that nothing needs the driver plan."""
        needs = {
            "exchange='driver'": self.exchange == "driver",
            "num_shards": self.num_shards is not None,
            "drop_stragglers": self.stragglers,
        }
        for option, needed in needs.items():
            if needed:
                raise ConfigError(
                    f"{option} needs RDDs, which Spark Connect has not; leave it out, or fit in a classic "
                    "session",
                    code="config-connect",
                )

    def exchanges_directly(self, access: Access, exchange: Exchange) -> bool:
        """Return whether the tasks of a group exchange among themselves where they can."""
        conf = access.conf
        wanted = conf(TRANSPORT, "auto") if self.transport == "auto" else self.transport
        if wanted not in get_args(TransportName):
            known = ", ".join(get_args(TransportName))
            raise ConfigError(f"{TRANSPORT}={wanted}: expected one of {known}", code="config-cluster")
        if wanted == "shuffle":
            return False
        reasons = [f"{name}=true asks for encryption" for name in _ENCRYPTING if conf(name) == "true"]
        if conf("spark.python.worker.reuse", "true") == "false":
            reasons.append("spark.python.worker.reuse=false ends the processes that would be connected")
        if exchange == "driver":
            reasons.append("exchange='driver' sends weights through the driver")
        if reasons and self.transport == "direct":
            raise ConfigError(
                f"transport='direct': {reasons[0]}; take transport='shuffle'", code="config-cluster"
            )
        if not reasons:
            _seconds(access)  # what is no number is said now
        return not reasons

    def plan(self, exchange: Exchange, ranks: int, changes: int, *, directly: bool = False) -> Plan:
        """Return the plan of an exchange.

        Args:
            exchange: which one; not ``auto``.
            ranks: number of partitions.
            changes: see :class:`Replicated`.
            directly: whether tasks exchange among themselves: steps are so short that a job's fixed cost, a
                tenth of a second, shows in a second of them.
        """
        plan = self._dense_plan(exchange, ranks, changes, directly=directly)
        return Tabled(dense=plan) if self.keyed else plan

    def _dense_plan(self, exchange: Exchange, ranks: int, changes: int, *, directly: bool) -> Plan:
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
            # All that stays is persisted at a group's end.
            group_seconds=(2.0 if directly else 1.0) if returned else 8.0,
            longest_group=longest,
            changes=changes,
        )

    def route(
        self, exchange: Exchange, access: Access, store: PartitionStore, fit: FitRef, profile: Any
    ) -> Route:
        """Return plan and transport of an exchange over a store."""
        ranks = len(store.partitions)
        rows = bool(self.tables)
        changes = 0 if fit.in_memory else changes_to_keep(store.executors.tasks, rows=rows)
        directly = self.exchanges_directly(access, exchange)
        plan = self.plan(exchange, ranks, changes, directly=directly)
        transport: Transport
        if exchange == "driver":
            transport = TwoJobTransport(access, store, fit, profile)
        else:
            chain = access.chain(store.tokens, ranks, profile)
            moves = bool(self.keyed) and not chain.stays
            if moves and not directly and store.executors.count > 1:
                raise ConfigError(
                    f"the embedding variable {self.keyed[0]!r} needs tasks that exchange directly on Spark "
                    "Connect if there are several executors; allow it (transport='auto'), take "
                    "nn.Embedding(sparse=True), or fit in a classic session",
                    code="config-connect",
                )
            executors = partial(access.count_executors, look=True) if moves else None
            transport = ShuffleTransport(ranks, fit, chain, access.longest_chain, executors)
            if directly:
                rendezvous = _rendezvous(access)
                transport = DirectTransport(access, store, fit, profile, chain, rendezvous, transport)
        return Route(plan, transport)


def _rendezvous(access: Access) -> Rendezvous:
    return Rendezvous(secrets.token_bytes(32), access.driver_host, *_seconds(access))


def _seconds(access: Access) -> list[float]:
    """Return for how long a task waits for others to begin, and for a byte of theirs."""
    found = []
    for name, default in ((WAIT, "3"), (PATIENCE, "120")):
        value = access.conf(name, default)
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise ConfigError(f"{name}={value}: expected a number of seconds above 0", code="config-cluster")
        found.append(seconds)
    return found
