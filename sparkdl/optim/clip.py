"""Clipping the combined gradient before the optimizer sees it.

To the bit what ``torch.nn.utils`` does where a shard holds everything. A norm over more than one
shard is summed in double precision; see :mod:`sparkdl.optim.reduction` for how sums travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.exceptions import ConfigError, is_number
from sparkdl.optim.reduction import Reduction
from sparkdl.optim.segments import segments
from sparkdl.wire.layout import ParamLayout

_EPS = 1e-6  # torch's own, against division by zero


@dataclass(frozen=True, slots=True)
class ClipByValue:
    """Clips each element of the gradient to [low, high].

    ``ClipByValue(limit)`` clips to [-limit, limit], as ``torch.nn.utils.clip_grad_value_`` does.

    Attributes:
        low: least value; with ``high=None`` the limit on both sides.
        high: greatest value.

    Raises:
        ConfigError: if the limit is not positive, or ``low`` is not less than ``high``.

    Examples:
        >>> ClipByValue(0.5)
        ClipByValue(low=-0.5, high=0.5)
    """

    low: float
    high: float | None = None

    def __post_init__(self) -> None:
        if self.high is None:
            if not is_number(self.low) or not self.low > 0:
                raise ConfigError(f"ClipByValue({self.low!r}): expected a positive limit, or low and high")
            object.__setattr__(self, "high", float(self.low))
            object.__setattr__(self, "low", -float(self.low))
        elif not is_number(self.low) or not is_number(self.high) or not self.low < self.high:
            raise ConfigError(
                f"ClipByValue({self.low!r}, {self.high!r}): expected two numbers, the lesser one first"
            )

    @property
    def reductions(self) -> int:
        """Number of sums over all shards: none."""
        return 0

    def clip(
        self,
        gradient: torch.Tensor,
        layout: ParamLayout,
        start: int,
        stop: int,
        used: NDArray[np.bool_],
    ) -> Reduction:
        """Clip the gradient of a shard in place; see :meth:`ClipByNorm.clip`."""
        gradient.clamp_(min=self.low).clamp_(max=self.high)
        yield from ()


@dataclass(frozen=True, slots=True)
class ClipByNorm:
    """Scales the gradient down so that its Euclidean norm is at most ``max_norm``.

    As ``torch.nn.utils.clip_grad_norm_`` over all parameters, or over each of them alone.

    Attributes:
        max_norm: greatest norm.
        per_layer: whether each parameter is clipped by its own norm.

    Raises:
        ConfigError: if ``max_norm`` is not a positive number.
    """

    max_norm: float
    per_layer: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.max_norm) or not self.max_norm > 0:
            raise ConfigError(f"ClipByNorm({self.max_norm!r}): expected a positive number")

    @property
    def reductions(self) -> int:
        """Number of sums over all shards."""
        return 1

    def clip(
        self,
        gradient: torch.Tensor,
        layout: ParamLayout,
        start: int,
        stop: int,
        used: NDArray[np.bool_],
    ) -> Reduction:
        """Clip the gradient of a shard in place.

        Args:
            gradient: the gradient of elements [start, stop), shape (stop - start,).
            layout: where the parameters are.
            start: first element of the shard.
            stop: one past its last element.
            used: per parameter, whether it has a gradient; only these count.

        Yields:
            Sum of squares per parameter, shape (parameters,), and is sent their totals.
        """
        totals = yield _squares(gradient, layout, start, stop, used)
        # The root of an exact square is exact: a norm that one shard knew comes back to the bit.
        norms = torch.from_numpy(np.sqrt(totals)).to(gradient.dtype)
        if not used.any():
            return
        if not self.per_layer:
            gradient.mul_(self._coefficient(norms[torch.from_numpy(np.flatnonzero(used))]))
            return
        for segment in segments(layout, start, stop):
            if used[segment.param]:
                coefficient = self._coefficient(norms[segment.param : segment.param + 1])
                gradient[segment.start - start : segment.stop - start].mul_(coefficient)

    def _coefficient(self, norms: torch.Tensor) -> torch.Tensor:
        total = torch.linalg.vector_norm(norms)
        return torch.clamp(float(self.max_norm) / (total + _EPS), max=1.0)


Clip = ClipByValue | ClipByNorm
"""All that there are; ``reductions`` says whether one needs sums over all shards."""


def _squares(
    gradient: torch.Tensor, layout: ParamLayout, start: int, stop: int, used: NDArray[np.bool_]
) -> NDArray[np.float64]:
    squares = np.zeros(len(layout.params))
    found = [(index, norm) for index, norm in _norms(gradient, layout, start, stop) if used[index]]
    if found:  # one copy to the host
        indices, norms = zip(*found, strict=True)
        squares[list(indices)] = torch.stack(norms).cpu().numpy() ** 2
    return squares


def _norms(
    gradient: torch.Tensor, layout: ParamLayout, start: int, stop: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the norm of each parameter, or of a part of one, in double precision."""
    for segment in segments(layout, start, stop):
        part = gradient[segment.start - start : segment.stop - start]
        # Whole parameters as torch does; parts of one must add up well.
        dtype = gradient.dtype if segment.whole else torch.float64
        yield segment.param, torch.linalg.vector_norm(part, dtype=dtype).double()
