"""Messages of a step: how it went, a shard's gradient, sums and new weights, and what stays of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sparkdl.compute import problems
from sparkdl.compute.problems import Problem
from sparkdl.wire import buffers
from sparkdl.wire.codec import Cast, Codec, Encoded, rounded
from sparkdl.wire.codec import decode as decode_values
from sparkdl.wire.codec import encode as encode_values
from sparkdl.wire.frame import Array, Frame, under
from sparkdl.wire.held import Held, Owned, held, held_frame
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import TouchedRows


@dataclass(frozen=True, slots=True)
class Report:
    """How a partition's forward and backward pass went."""

    kind: ClassVar[str] = "report"
    source: int  # the partition
    rows: int  # rows of its share, without those that were left out
    other: bool  # whether they have other values than when they were built first
    dropped: int  # rows that were left out
    lost: int  # 1 if it began with a fresh state of its own because that was lost
    weight: float  # sum of its rows' weights
    divisor: float  # what its loss has been divided by
    loss: float  # mean loss
    extras: Mapping[str, float]  # further scalars that a training step returned
    task: Mapping[str, Any]  # place, start, seconds and phases of its task
    # the buffers that the forward pass has changed, by kind
    buffers: Mapping[str, Array] = field(default_factory=dict)
    # by what a further scalar counts in the mean over partitions, where that is not ``weight``
    shares: Mapping[str, float] = field(default_factory=dict)

    def scalars(self) -> dict[str, Any]:
        """Return the scalars, JSON-compatible."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "buffers"}

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind, **self.scalars()}, self.buffers)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Report:
        """Read what :meth:`frame` returned."""
        fields = {name: value for name, value in message.meta.items() if name != "kind"}
        return cls(**fields, buffers=message.arrays)


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of all partitions, in their order, and the combined buffers."""

    kind: ClassVar[str] = "reports"
    reports: Sequence[Mapping[str, Any]]  # what :meth:`Report.scalars` returns, of each
    buffers: Mapping[str, Array] = field(default_factory=dict)  # buffers that have changed, by kind

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind, "reports": list(self.reports)}, self.buffers)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Reports:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["reports"], message.arrays)


@dataclass(frozen=True, slots=True)
class Problems:
    """Why a step cannot be completed."""

    kind: ClassVar[str] = "problems"
    problems: Sequence[Problem]  # the reasons
    processes: int = 1  # Python processes that take turns on the tasks of the executor that tells it

    def frame(self) -> Frame:
        """Return the message as a frame."""
        reasons = [problems.to_json(problem) for problem in self.problems]
        return Frame({"kind": self.kind, "problems": reasons, "processes": self.processes})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Problems:
        """Read what :meth:`frame` returned."""
        meta = message.meta
        return cls([problems.from_json(values) for values in meta["problems"]], meta["processes"])


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What a group of iterations tells the driver."""

    kind: ClassVar[str] = "group"
    # of each iteration, what its updates and its partitions have to report, JSON-compatible
    steps: Sequence[Mapping[str, Any]]
    buffers: Array  # new floating-point buffers
    counters: Array  # new integer and boolean buffers
    params: Array | None = None  # new weights; ``None`` if they stay on the executors
    gradient: Array | None = None  # combined gradient of the last iteration, if the driver wants it

    def frame(self) -> Frame:
        """Return the message as a frame."""
        arrays = {name: getattr(self, name) for name in ("buffers", "counters", "params", "gradient")}
        present = {name: array for name, array in arrays.items() if array is not None}
        return Frame({"kind": self.kind, "steps": list(self.steps)}, present)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> GroupReport:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["steps"], **message.arrays)


@dataclass(frozen=True, slots=True)
class Shard:
    """One source's gradient of a shard, or of all weights, as its codec writes it."""

    kind: ClassVar[str] = "shard"
    source: int  # the partition that it is from
    weight: float  # number of its samples, or sum of their weights
    coded: Encoded  # the values as they travel
    used: NDArray[np.bool_]  # per parameter of the layout, whether it has a gradient
    # of row-sparse gradients, by parameter, the rows that are sent; others are zero
    tables: Mapping[str, Array] = field(default_factory=dict)
    mine: bool = False  # whether the receiver may overwrite the values

    def frame(self) -> Frame:
        """Return the message as a frame."""
        meta = {"kind": self.kind, "source": self.source, "weight": self.weight, **self.coded.meta}
        return Frame(meta, {**self.coded.arrays, "used": self.used, **self.tables})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Shard:
        """Read what :meth:`frame` returned."""
        meta = {n: v for n, v in message.meta.items() if n not in ("kind", "source", "weight")}
        tables = {n: a for n, a in message.arrays.items() if TouchedRows.names(n)}
        arrays = {n: a for n, a in message.arrays.items() if n != "used" and n not in tables}
        coded = Encoded(meta, arrays)
        used = message.arrays["used"]
        return cls(message.meta["source"], message.meta["weight"], coded, used, tables, mine)

    @classmethod
    def of(
        cls,
        source: int,
        weight: float,
        values: Array,
        used: NDArray[np.bool_],
        rows: TouchedRows | None = None,
        start: int = 0,
        codec: Codec = "fp32",
        left_out: Array | None = None,
    ) -> Shard:
        """Encode the gradient of elements from ``start`` on; by fp32 it refers to ``values``, without a copy.

        Args:
            source: source partition.
            weight: number of samples, or sum of their weights.
            values: its mean gradient over the shard.
            used: per parameter of the layout, whether it got a gradient.
            rows: where the gradient is row-sparse, the rows that have one; others are not sent.
            start: first element of the shard.
            codec: how the gradient is written.
            left_out: filled with the codec's residual, if given.
        """
        sent = values if rows is None else rows.take(values, start)
        coded = encode_values(codec, sent)
        if left_out is not None:
            rest = sent - decode_values(coded.meta, coded.arrays, values.dtype)
            if rows is None:
                left_out[:] = rest
            else:
                left_out.fill(0)
                rows.put(rest, left_out, start)
        return cls(source, weight, coded, used, rows.arrays if rows is not None else {})

    def rows(self, layout: ParamLayout) -> TouchedRows:
        """Return which elements are sent."""
        return TouchedRows.read(layout, self.tables)

    def values(self, layout: ParamLayout, start: int, stop: int) -> Held[Array]:
        """Decode the gradient of elements [start, stop)."""
        sent = decode_values(self.coded.meta, self.coded.arrays, np.dtype(layout.dtype))
        rows = self.rows(layout)
        if not rows.is_whole:
            # np.zeros would take new memory from the system, which costs 0.5 ms per MB.
            whole = buffers.empty((stop - start) * sent.itemsize).view(sent.dtype)
            whole.fill(0)
            rows.put(sent, whole, start)
            return Owned(whole)
        as_sent = any(sent is array for array in self.coded.arrays.values())
        return held(sent, mine=self.mine) if as_sent else Owned(sent)

    def renumbered(self, onto: TouchedRows) -> Shard:
        """Return the gradient of all weights as one of a packed vector, which covers all of its rows."""
        own = self.rows(onto.layout).tables
        places = {i: np.searchsorted(onto.tables[i], own[i]) for i in own.keys() & onto.tables}
        tables = {**self.tables, **TouchedRows(onto.packed, places).arrays}
        return Shard(self.source, self.weight, self.coded, self.used, tables, self.mine)


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """What the update of a shard has to report."""

    start: int  # first element of the shard
    sources: int  # checksum of the sources and their weights, equal for all shards
    received: int  # bytes of gradients that have arrived
    state_bytes: int  # bytes of the state of the shard
    task: Mapping[str, Any]  # place, start, seconds and phases of its task

    def scalars(self) -> dict[str, Any]:
        """Return the facts, JSON-compatible."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class UpdatedShard:
    """The new weights of a shard."""

    kind: ClassVar[str] = "updated"
    facts: UpdateFacts  # what its update has to report
    params: Held[Array] | Encoded  # the weights, or how they travel to other partitions
    gradient: Array | None = None  # combined gradient, if the driver wants it
    reports: Reports | None = None  # reports of all partitions, from the shard that combines them

    @property
    def is_coded(self) -> bool:
        """Whether the weights are as they travel to other partitions."""
        return isinstance(self.params, Encoded)

    @property
    def held(self) -> Held[Array]:
        """The weights, at the shard's own."""
        assert not isinstance(self.params, Encoded)
        return self.params

    def coded(self, codec: Cast) -> UpdatedShard:
        """Return the message as it travels to other partitions."""
        return replace(self, params=encode_values(codec, self.held.value))

    def values(self, codec: Cast, dtype: np.dtype[Any]) -> Array:
        """Return the weights as they arrive at every partition, also at the shard's own."""
        if isinstance(self.params, Encoded):
            return decode_values(self.params.meta, self.params.arrays, dtype)
        return rounded(codec, self.params.value)

    def frame(self) -> Frame:
        """Return the message as a frame."""
        meta: dict[str, Any] = {"kind": self.kind, **self.facts.scalars()}
        arrays: dict[str, Array] = {}
        if isinstance(self.params, Encoded):
            meta["codec"] = dict(self.params.meta)
            arrays |= {f"params.{name}": array for name, array in self.params.arrays.items()}
        else:
            arrays["params"] = self.params.value
        if self.gradient is not None:
            arrays["gradient"] = self.gradient
        if self.reports is not None:
            meta["reports"] = list(self.reports.reports)
            arrays |= {f"reports.{name}": array for name, array in self.reports.buffers.items()}
        return Frame(meta, arrays)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> UpdatedShard:
        """Read what :meth:`frame` returned."""
        meta, arrays = message.meta, message.arrays
        facts = UpdateFacts(**{name: meta[name] for name in UpdateFacts.__slots__})
        coded = Encoded(meta["codec"], under("params.", arrays)) if "codec" in meta else None
        params = coded or held(arrays["params"], mine=mine)
        reports = Reports(meta["reports"], under("reports.", arrays)) if "reports" in meta else None
        return cls(facts, params, arrays.get("gradient"), reports)


@dataclass(frozen=True, slots=True)
class Partials:
    """A shard's part of sums over all shards."""

    kind: ClassVar[str] = "partials"
    start: int
    sources: int
    sums: Array

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind, "start": self.start, "sources": self.sources}, {"sums": self.sums})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Partials:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["start"], message.meta["sources"], message.arrays["sums"])


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all shards that are known, in their order."""

    kind: ClassVar[str] = "totals"
    totals: Sequence[Array]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind}, {str(i): total for i, total in enumerate(self.totals)})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Totals:
        """Read what :meth:`frame` returned."""
        return cls(list(message.arrays.values()))


@dataclass(frozen=True, slots=True)
class State:
    """Optimizer state of a shard, or of all weights, as :mod:`sparkdl.optim.shard.run` writes it."""

    kind: ClassVar[str] = "state"
    state: Held[Frame]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return self.state.value

    @classmethod
    def read(cls, message: Frame, mine: bool) -> State:
        """Read what :meth:`frame` returned."""
        return cls(held_frame(message, mine=mine))


@dataclass(frozen=True, slots=True)
class Average:
    """Averaged weights of a shard, or of all weights."""

    kind: ClassVar[str] = "average"
    params: Held[Array]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind}, {"params": self.params.value})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Average:
        """Read what :meth:`frame` returned."""
        return cls(held(message.arrays["params"], mine=mine))


@dataclass(frozen=True, slots=True)
class Master:
    """A shard's weights, where the driver does not have them."""

    kind: ClassVar[str] = "master"
    params: Array

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind}, {"params": self.params})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Master:
        """Read what :meth:`frame` returned."""
        return cls(message.arrays["params"])
