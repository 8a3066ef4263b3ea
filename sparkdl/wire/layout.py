"""The layout of a module: places of parameters and buffers in the flat vectors that travel.

All trainable parameters of a module lie one after the other in one vector, and all floating-point
buffers in a second one. This vocabulary is shared by every package: ``nn`` fills the vectors,
``allreduce`` cuts them, ``optim`` updates the pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor's place in a flat vector."""

    name: str  # qualified name in the module, such as ``"conv1.weight"``
    shape: tuple[int, ...]  # shape of the tensor
    offset: int  # index of its first element in the flat vector
    group: int = 0  # index of its optimizer parameter group (0 for buffers)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        """Index one past its last element in the flat vector."""
        return self.offset + self.numel


@dataclass(frozen=True, slots=True)
class ParamLayout:
    """The flat layout of a module's trainable parameters and of its buffers."""

    # trainable parameters, tied ones once, in the order of ``module.parameters()``
    params: tuple[TensorPlace, ...]
    # floating-point buffers, such as BatchNorm's running statistics, and frozen parameters that forward
    # changes, such as those of a target network
    buffers: tuple[TensorPlace, ...] = ()
    # integer and boolean buffers, such as BatchNorm's number of batches
    counters: tuple[TensorPlace, ...] = ()
    # common dtype of parameters and floating-point buffers, ``"float32"`` or ``"float64"``
    dtype: str = "float32"
    # stretches [start, stop) of the trainable scalars that no shard may cut, in order: tensors that an
    # optimizer needs as a whole
    uncut: tuple[tuple[int, int], ...] = ()

    @property
    def numel(self) -> int:
        """Number of trainable scalars."""
        return self.params[-1].end if self.params else 0

    @property
    def itemsize(self) -> int:
        """Bytes per parameter scalar."""
        return 8 if self.dtype == "float64" else 4

    @property
    def nbytes(self) -> int:
        """Bytes of the flat vector of trainable scalars."""
        return self.numel * self.itemsize

    def shards(self, count: int) -> list[tuple[int, int]]:
        """Return [start, stop) of each of so many shards.

        The first ``numel % count`` are one element longer. A border within a stretch that may not be cut
        moves to the nearer of its ends, so that shards may be empty.
        """
        size, longer = divmod(self.numel, count)
        starts = [n * size + min(n, longer) for n in range(count + 1)]
        return list(pairwise(_moved(self.uncut, start) for start in starts))

    def largest_shard(self, count: int) -> int:
        """Return the bytes of the largest shard, about: of an even share, if shards may end anywhere."""
        even = self.nbytes // count
        if not self.uncut:
            return even
        return max(even, *((stop - start) * self.itemsize for start, stop in self.shards(count)))

    def param_at(self, index: int) -> TensorPlace:
        """Return the parameter that owns element ``index`` of the flat vector."""
        for spec in self.params:
            if spec.offset <= index < spec.end:
                return spec
        raise IndexError(index)


def lay_out(entries: list[tuple[str, tuple[int, ...], int]]) -> tuple[TensorPlace, ...]:
    """Place tensors, given as (name, shape, group), one after the other."""
    specs: list[TensorPlace] = []
    offset = 0
    for name, shape, group in entries:
        spec = TensorPlace(name, shape, offset, group)
        specs.append(spec)
        offset = spec.end
    return tuple(specs)


def _moved(uncut: Sequence[tuple[int, int]], border: int) -> int:
    index = bisect_right(uncut, border, key=itemgetter(0)) - 1
    if index < 0:
        return border
    start, stop = uncut[index]
    if border >= stop:
        return border
    return start if border - start <= stop - border else stop
