"""Held values: ownership of arrays, in their types.

Large arrays are updated in place where that is allowed, which saves copies of the weights. The type of a
value says whether it is allowed; it is never guessed from an array's flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from sparkdl.wire import buffers
from sparkdl.wire.frame import Array, Frame

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Owned(Generic[T]):
    """A value that its holder may overwrite or give away."""

    value: T


@dataclass(frozen=True, slots=True)
class Shared(Generic[T]):
    """A value with other readers: its holder must not overwrite it."""

    value: T


Held = Owned[T] | Shared[T]


def own(held: Held[Array]) -> Array:
    """Return an array that the caller may overwrite: the held one, or a copy of a shared one."""
    return held.value if isinstance(held, Owned) else buffers.copy(held.value)


def own_tensor(array: Held[Array]) -> torch.Tensor:
    """Return a tensor that the caller may overwrite, as :func:`own` does."""
    return tensor_of(own(array))


def held(array: Array, *, mine: bool) -> Held[Array]:
    """Return an array as owned if it is the caller's and its memory can be written to."""
    return Owned(array) if mine and array.flags.writeable else Shared(array)


def held_frame(message: Frame, *, mine: bool) -> Held[Frame]:
    """Return a frame as owned if it is the caller's and all of its memory can be written to."""
    writable = all(array.flags.writeable for array in message.arrays.values())
    return Owned(message) if mine and writable else Shared(message)


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor of the same memory: the one that the array was made of, if it was made of one.

    State that is laid out and read again with each step in one process would else be a tensor of an array of
    a tensor of an array: a chain that grows with each step.
    """
    behind: Any = array
    while not isinstance(behind, torch.Tensor):
        following = behind.obj if isinstance(behind, memoryview) else getattr(behind, "base", None)
        if following is None:
            return torch.from_numpy(array)
        behind = following
    made = torch.from_numpy(array)
    same = (behind.data_ptr(), behind.shape, behind.dtype) == (made.data_ptr(), made.shape, made.dtype)
    return behind if same and behind.is_contiguous() else made
