"""Messages that a rank keeps for the next step, and that Spark keeps for the next group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparkdl.wire.frame import Array, Frame
from sparkdl.wire.held import Held, Owned, Shared, held


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
        mine = mine and all(array.flags.writeable for array in message.arrays.values())
        return cls(Owned(message) if mine else Shared(message))


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
