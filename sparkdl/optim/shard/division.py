"""The division of a shard's weights into runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.optim.reducing import ReducingOptimizer
from sparkdl.optim.segments import segments
from sparkdl.optim.shard.run import ShardRun
from sparkdl.optim.spec import OptimizerSpec, Scope
from sparkdl.wire.layout import ParamLayout


class Division:
    """Divides stretches of the flat weights into runs, as their optimizers need it."""

    def __init__(self, spec: OptimizerSpec, layout: ParamLayout) -> None:
        self._layout = layout
        self._ranges = spec.group_ranges
        self._classes = spec.classes
        self._scopes = [part.scope for part in spec.parts]
        self._whole = spec.whole_groups
        # whether an optimizer that has made a step makes the next as one that is built anew
        self.lasts = not self._whole and all(map(_is_elementwise, self._classes))
        self._borders = {param.offset for param in layout.params}

    def class_of(self, run: ShardRun) -> type[torch.optim.Optimizer]:
        """Return the class of a run's optimizer."""
        return next(c for c, groups in zip(self._classes, self._ranges, strict=True) if run.group in groups)

    def scope_of(self, run: ShardRun) -> Scope:
        """Return what a run's optimizer needs to see at once."""
        return next(s for s, groups in zip(self._scopes, self._ranges, strict=True) if run.group in groups)

    def is_sparse(self, run: ShardRun) -> bool:
        """Whether the run's optimizer takes sparse gradients only."""
        return issubclass(self.class_of(run), torch.optim.SparseAdam)

    def comes_in_blocks(self, run: ShardRun) -> bool:
        """Whether the run is long, and the optimizer does the same to each of its elements."""
        reducing = issubclass(self.class_of(run), ReducingOptimizer)
        return run.is_long and not reducing and not self.is_sparse(run) and run.group not in self._whole

    def shape_of(self, run: ShardRun) -> tuple[int, ...] | None:
        """Return the shape in which the run's optimizer sees it, ``None`` if any will do."""
        index = self.first_param(run) if run.group in self._whole else None
        return None if index is None else self._layout.params[index].shape

    def first_param(self, run: ShardRun) -> int | None:
        """Return the parameter that a run begins in; ``None`` for a run without elements."""
        first = next(segments(self._layout, run.start, run.stop), None)
        return None if first is None else first.param

    def is_used(self, run: ShardRun, used: NDArray[np.bool_]) -> bool:
        """Whether a run has a gradient; one of several parameters is used as a whole, see :meth:`split`."""
        index = self.first_param(run)
        if index is not None:
            return bool(used[index])
        own = next(groups for groups in self._ranges if run.group in groups)
        return any(used[i] for i, spec in enumerate(self._layout.params) if spec.group in own)

    @property
    def _apart(self) -> frozenset[int]:
        """The groups in which each parameter needs a run of its own."""
        return self._whole | {
            group
            for cls, groups in zip(self._classes, self._ranges, strict=True)
            if issubclass(cls, ReducingOptimizer) and cls.per_parameter
            for group in groups
        }

    def joined(self, runs: list[ShardRun]) -> list[ShardRun]:
        """Join runs that shards have cut: a parameter's sums are those of one run."""
        joined: list[ShardRun] = []
        apart = self._apart
        for run in runs:
            whole = run.group in apart and run.start in self._borders
            if joined and not whole and joined[-1].goes_on_with(run):
                joined[-1].append(run)
            else:
                joined.append(run)
        return joined

    def fresh(self, start: int, stop: int) -> Iterator[ShardRun]:
        """Merge neighbouring parameters of one group into one run each, unless they need their own."""
        apart = self._apart
        missing = [
            groups
            for cls, groups in zip(self._classes, self._ranges, strict=True)
            if issubclass(cls, ReducingOptimizer)
        ]
        run: ShardRun | None = None
        for segment in segments(self._layout, start, stop):
            group = self._layout.params[segment.param].group
            missing = [groups for groups in missing if group not in groups]
            if run is not None and group == run.group and group not in apart:
                run.stop = segment.stop
                continue
            if run is not None:
                yield run
            run = ShardRun(segment.start, segment.stop, group)
        if run is not None:
            yield run
        for groups in missing:
            yield ShardRun(stop, stop, groups.start)

    def split(self, runs: Sequence[ShardRun], used: NDArray[np.bool_]) -> Iterator[ShardRun]:
        """Split runs so that each holds only used or only unused parameters."""
        for run in runs:
            start = run.start
            previous: bool | None = None
            for segment in segments(self._layout, run.start, run.stop):
                current = bool(used[segment.param])
                if previous is not None and current != previous:
                    yield run.cut(start, segment.start)
                    start = segment.start
                previous = current
            yield run if start == run.start else run.cut(start, run.stop)


def _is_elementwise(cls: type[torch.optim.Optimizer]) -> bool:
    """Whether an optimizer is one of those that have nothing but the state of each element."""
    own = cls.__module__.startswith(("torch.optim.", "sparkdl.optim."))
    return own and not issubclass(cls, ReducingOptimizer | torch.optim.SparseAdam)
