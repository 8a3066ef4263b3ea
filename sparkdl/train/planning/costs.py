"""The one cost model: how the time of a step's sync grows with ranks, bytes and messages.

The numbers are those of a machine with two cores, and assumptions where nothing was measured. A rehearsal
takes from here how a cost *grows*, and measures how large it is. ``benchmarks/cost_model.py`` fits
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["replicated", "sharded", "driver"]


@dataclass(frozen=True, slots=True)
class Driver:
    """Seconds of the driver, by what causes them."""

    job: float = 60e-3  # of a job
    task: float = 3e-3  # of a task
    step: float = 0.2e-3  # of a step
    report: float = 20e-6  # of a rank's report of a step

    def seconds(self, ranks: int, steps: int, stages: int) -> float:
        """Return the seconds of a group."""
        return self.job + stages * ranks * self.task + steps * (self.step + ranks * self.report)


@dataclass(frozen=True, slots=True)
class Carrier:
    """What the exchange costs a task."""

    message: float = 40e-6  # processor seconds of sending one message and receiving one
    exchange: float = 60e-6  # processor seconds of an exchange besides
    byte: float = 0.6e-9  # processor seconds of sending a byte and receiving one


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies around an exchange."""

    network: float = 1.25e9  # bytes per second of each machine, in each direction
    latency: float = 100e-6  # seconds that a message is on its way
    copy: float = 0.15e-9  # seconds per byte of weights that are copied into the module
    shuffled: float = 3.2e-9  # seconds per byte that a task sends and receives by shuffles
    packing: float = 50e-6  # processor seconds of packing a message and of reading one

    def sent(self, ranks: float) -> float:
        """Return the seconds in which the network brings a byte when so many ranks send to all.

        Headers take some of a link, TCP's connections do not end together, and packets are lost where many
        send to one: 0.8 of it is left among eight ranks, 0.65 among 24 (benchmarks/links.py).
        """
        crowd = min(max(math.log(ranks / 8, 3), 0.0), 1.0)
        return 1 / ((0.8 - 0.15 * crowd) * self.network)


@dataclass(frozen=True, slots=True)
class Moves:
    """What a rank does in the sync of a step."""

    ranks: int  # of how many it is one
    exchanges: int  # how many exchanges there are
    messages: int  # messages that it sends
    nbytes: float  # bytes that it sends
    summed: float  # bytes of gradients that it adds up


def moves(kind: Kind, nbytes: int, ranks: int) -> Moves:
    """Return what a rank does, of so many ranks."""
    if kind == "replicated":
        return Moves(ranks, 1, ranks - 1, nbytes * (ranks - 1.0), nbytes * ranks)
    away = 1 - 1 / ranks
    return Moves(ranks, 2, 2 * (ranks - 1), 2 * nbytes * away, nbytes)


def exchange_seconds(does: Moves, transport: str, carrier: Carrier, around: Surroundings) -> float:
    """Return the seconds in which messages travel."""
    if transport != "direct":
        return does.nbytes * max(around.shuffled, around.sent(does.ranks))
    byte = max(carrier.byte, around.sent(does.ranks))
    each = carrier.message + around.packing
    return does.exchanges * (carrier.exchange + around.latency) + does.messages * each + does.nbytes * byte


def worth(before: float, after: float, executors: int, more: int) -> bool:
    """Return whether more executors pay: whether they bring half of what ideal scaling would.

    Examples:
        >>> worth(10.0, 6.0, 1, 2), worth(10.0, 9.0, 1, 2)
        (True, False)
    """
    gain, ideal = before / after - 1, more / executors - 1
    return gain >= 0.5 * ideal
