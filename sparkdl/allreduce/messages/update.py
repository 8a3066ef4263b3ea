"""Messages of the update of a shard: its new weights, and the sums over all shards before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparkdl.allreduce.messages.reports import Reports
from sparkdl.codec import Cast, Encoded, rounded
from sparkdl.codec import decode as decode_values
from sparkdl.codec import encode as encode_values
from sparkdl.frame import Array, Frame
from sparkdl.held import Held, held


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """What the update of a shard has to report.

    Attributes:
        start: first element of the shard.
        sources: checksum of the sources and their weights, equal for all shards.
        received: bytes of gradients that have arrived.
        state_bytes: bytes of the state of the shard.
        task: place, start, seconds and phases of its task.
    """

    start: int
    sources: int
    received: int
    state_bytes: int
    task: Mapping[str, Any]

    def told(self) -> dict[str, Any]:
        """Return the facts, JSON-compatible."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class UpdatedShard:
    """The new weights of a shard.

    Attributes:
        facts: what its update has to report.
        params: the weights, or how they travel to other partitions.
        gradient: combined gradient, if the driver wants it.
        reports: reports of all partitions, from the shard that combines them.
    """

    kind: ClassVar[str] = "updated"
    facts: UpdateFacts
    params: Held[Array] | Encoded
    gradient: Array | None = None
    reports: Reports | None = None

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
        meta: dict[str, Any] = {"kind": self.kind, **self.facts.told()}
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
        coded = Encoded(meta["codec"], _under("params.", arrays)) if "codec" in meta else None
        params = coded or held(arrays["params"], mine=mine)
        reports = Reports(meta["reports"], _under("reports.", arrays)) if "reports" in meta else None
        return cls(facts, params, arrays.get("gradient"), reports)


@dataclass(frozen=True, slots=True)
class Partials:
    """A shard's part of sums over all shards.

    Attributes:
        start: first element of the shard.
        sources: see :class:`UpdateFacts`.
        sums: the partial sums.
    """

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
    """Sums over all shards that are known, in their order.

    Attributes:
        totals: the sums.
    """

    kind: ClassVar[str] = "totals"
    totals: Sequence[Array]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind}, {str(i): total for i, total in enumerate(self.totals)})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Totals:
        """Read what :meth:`frame` returned."""
        return cls(list(message.arrays.values()))


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
