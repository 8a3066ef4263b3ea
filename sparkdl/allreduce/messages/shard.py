"""The message that carries a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sparkdl import buffers
from sparkdl.codec import Codec, Encoded
from sparkdl.codec import decode as decode_values
from sparkdl.codec import encode as encode_values
from sparkdl.frame import Array, Frame
from sparkdl.held import Held, Owned, held
from sparkdl.layout import ParamLayout
from sparkdl.rows import Rows


@dataclass(frozen=True, slots=True)
class Shard:
    """One source's gradient of a shard, or of all weights, as its codec writes it.

    Attributes:
        source: the partition that it is from.
        weight: number of its samples, or sum of their weights.
        coded: the values as they travel.
        used: per parameter of the layout, whether it has a gradient.
        tables: of row-sparse gradients, by parameter, the rows that are sent; others are zero.
        mine: whether the receiver may overwrite the values.
    """

    kind: ClassVar[str] = "shard"
    source: int
    weight: float
    coded: Encoded
    used: NDArray[np.bool_]
    tables: Mapping[str, Array] = field(default_factory=dict)
    mine: bool = False

    def frame(self) -> Frame:
        """Return the message as a frame."""
        meta = {"kind": self.kind, "source": self.source, "weight": self.weight, **self.coded.meta}
        return Frame(meta, {**self.coded.arrays, "used": self.used, **self.tables})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Shard:
        """Read what :meth:`frame` returned."""
        meta = {n: v for n, v in message.meta.items() if n not in ("kind", "source", "weight")}
        tables = {n: a for n, a in message.arrays.items() if Rows.names(n)}
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
        rows: Rows | None = None,
        start: int = 0,
        codec: Codec = "fp32",
        left_out: Array | None = None,
    ) -> Shard:
        """Encode the gradient of elements from ``start`` on.

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

    def rows(self, layout: ParamLayout) -> Rows:
        """Return which elements are sent."""
        return Rows.read(layout, self.tables)

    def values(self, layout: ParamLayout, start: int, stop: int) -> Held[Array]:
        """Decode the gradient of elements [start, stop)."""
        sent = decode_values(self.coded.meta, self.coded.arrays, np.dtype(layout.dtype))
        rows = self.rows(layout)
        if rows.tables:
            # np.zeros would take new memory from the system, which costs 0.5 ms per MB.
            whole = buffers.empty((stop - start) * sent.itemsize).view(sent.dtype)
            whole.fill(0)
            rows.put(sent, whole, start)
            return Owned(whole)
        as_sent = any(sent is array for array in self.coded.arrays.values())
        return held(sent, mine=self.mine) if as_sent else Owned(sent)

    def renumbered(self, onto: Rows) -> Shard:
        """Return the gradient of all weights as one of a packed vector, which covers all of its rows."""
        own = self.rows(onto.layout).tables
        places = {i: np.searchsorted(onto.tables[i], own[i]) for i in own.keys() & onto.tables}
        tables = {**self.tables, **Rows(onto.packed, places).arrays}
        return Shard(self.source, self.weight, self.coded, self.used, tables, self.mine)
