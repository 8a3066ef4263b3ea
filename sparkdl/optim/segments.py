"""The parameters under a stretch of the flat weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from sparkdl.wire.layout import ParamLayout


class Segment(NamedTuple):
    """The part of one parameter that lies in a stretch."""

    param: int  # index of the parameter in the layout
    start: int  # first element, in the flat vector of all weights
    stop: int  # one past the last element
    whole: bool  # whether it is all of the parameter


def segments(layout: ParamLayout, start: int, stop: int) -> Iterator[Segment]:
    """Yield the parameters in elements [start, stop), in order; those without elements are left out."""
    first = bisect_right(layout.params, start, key=lambda spec: spec.end)
    for index in range(first, len(layout.params)):
        spec = layout.params[index]
        if spec.offset >= stop:
            return
        end = spec.end
        if spec.offset < end:
            whole = start <= spec.offset and end <= stop
            yield Segment(index, max(spec.offset, start), min(end, stop), whole)
