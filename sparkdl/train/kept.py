"""What stays with the weights between iterations: picked by kind, cut for other slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparkdl import frame
from sparkdl.frame import Array, Frame, Parts
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
