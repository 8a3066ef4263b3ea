"""What stays with the weights between iterations: picked by kind, cut for other slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from sparkdl import frame
from sparkdl.frame import Array, Buffer, Frame, Parts
from sparkdl.optim.slice import cut_states

MASTER = "master"
"""Kind of the frame with a slice's weights, where the driver does not have them."""


def master_frame(params: Array) -> Parts:
    """Pack a slice's weights, to stay with the rest of what the slice keeps."""
    return frame.pack({"kind": MASTER}, {"params": params})


def cut_kept(kept: Sequence[Frame], bounds: Sequence[tuple[int, int]]) -> list[list[Parts]]:
    """Cut what stays with all slices for others.

    Args:
        kept: frames of the optimizer's state and the averaged weights, in the order of the slices.
        bounds: [start, stop) of each new slice.

    Returns:
        The frames of each new slice.
    """
    states = [message for message in kept if message.meta["kind"] == "state"]
    cut = [[parts] for parts in cut_states(states, bounds)] if states else [[] for _ in bounds]
    averages: list[Array] = [m.arrays["params"] for m in kept if m.meta["kind"] == "average"]
    if averages:
        whole = np.concatenate(averages)
        for frames, (start, stop) in zip(cut, bounds, strict=True):
            frames.append(frame.pack({"kind": "average"}, {"params": whole[start:stop]}))
    return cut


def is_not_master(kind: str) -> bool:
    """Return whether frames of a kind are not the slice's weights but what else stays with it."""
    return kind != MASTER


def check_kept(kept: Sequence[Sequence[Buffer]], numel: int) -> None:
    """Check what a file says that stays with the slices.

    Args:
        kept: frames of each slice.
        numel: trainable scalars of the module.

    Raises:
        ValueError, LookupError, TypeError: if it does not cover the weights once, from first to last.
    """
    ends = {"state": 0, "average": 0}
    for message in _unpacked(kept):
        kind = message.meta["kind"]
        if kind == "average":
            ends[kind] += message.arrays["params"].size
            continue
        for start, stop, group, scalars in message.meta["runs"]:
            if not (
                start == ends[kind] <= stop
                and isinstance(stop, int)
                and isinstance(group, int)
                and group >= 0
            ):
                raise ValueError(f"state of weights {start!r:.20} to {stop!r:.20} after {ends[kind]}")
            ends[kind] = stop
            dict(scalars)
    for kind, end in ends.items():
        if end not in (0, numel):
            raise ValueError(f"{kind} of {end} weights, expected {numel}")


def state_names(kept: Sequence[Sequence[Buffer]]) -> dict[int, set[str]]:
    """Return the names of the optimizer's state by parameter group, of those that have any."""
    names: dict[int, set[str]] = {}
    for message in _unpacked(kept):
        for index, (_, _, group, scalars) in enumerate(message.meta.get("runs", [])):
            prefix = f"{index}."
            arrays = {n.removeprefix(prefix) for n in message.arrays if n.startswith(prefix)}
            if found := {*scalars, *arrays}:
                names.setdefault(group, set()).update(found)
    return names


def _unpacked(kept: Sequence[Sequence[Buffer]]) -> Iterable[Frame]:
    return map(frame.unpack, chain.from_iterable(kept))
