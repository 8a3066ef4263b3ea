"""Messages of a step's phases to each other, to the driver, and to later ones: one class each.

A message travels as a frame (:mod:`sparkdl.wire.frame`), whose kind is written down in its class alone.
Small values lie in the frame's header, vectors are its arrays; neither encoding nor decoding copies a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, get_args

from sparkdl.allreduce.messages.step import (
    Average,
    GroupReport,
    Master,
    Partials,
    Problems,
    Report,
    Reports,
    Shard,
    State,
    Totals,
    UpdatedShard,
    UpdateFacts,
)
from sparkdl.allreduce.messages.tables import FoundRows, OwnedRows, RowGradients, Together, WantedRows
from sparkdl.wire import frame
from sparkdl.wire.frame import Frame, Packed, Parts

__all__ = [
    "Average",
    "FoundRows",
    "GroupReport",
    "M",
    "Master",
    "Message",
    "OwnedRows",
    "Partials",
    "Problems",
    "Report",
    "Reports",
    "RowGradients",
    "Shard",
    "State",
    "Together",
    "Totals",
    "UpdateFacts",
    "UpdatedShard",
    "WantedRows",
    "decode",
    "encode",
    "first_of",
    "nbytes",
    "of_type",
    "opened",
    "pack",
    "read",
    "together",
]

Message = (
    Shard
    | Report
    | Reports
    | Problems
    | UpdatedShard
    | Partials
    | Totals
    | State
    | Average
    | Master
    | GroupReport
    | WantedRows
    | FoundRows
    | RowGradients
    | OwnedRows
    | Together
)

_BY_KIND: Mapping[str, type[Message]] = {cls.kind: cls for cls in get_args(Message)}

M = TypeVar("M", bound=Message)


def encode(message: Message) -> Parts:
    """Lay a message out; its arrays are referenced, not copied."""
    return pack(message.frame())


def pack(message: Frame) -> Parts:
    """Lay a frame out; its arrays are referenced, not copied."""
    return frame.pack(message.meta, message.arrays)


def decode(packed: Packed, *, mine: bool = False) -> Message:
    """Read a message; if it is ``mine``, its arrays may be overwritten where their memory allows it."""
    return read(frame.unpack(packed, writable=mine), mine=mine)


def read(found: Frame, *, mine: bool = False) -> Message:
    """Return the message of a frame; see :func:`decode`."""
    return _BY_KIND[found.meta["kind"]].read(found, mine)


def together(parts: Iterable[Message]) -> Message:
    """Return messages for one rank as one message."""
    given = list(parts)
    return given[0] if len(given) == 1 else Together([message.frame() for message in given])


def opened(messages: Iterable[Message]) -> Iterator[Message]:
    """Return messages, those that travelled together one by one."""
    for message in messages:
        if isinstance(message, Together):
            yield from (read(found, mine=message.mine) for found in message.frames)
        else:
            yield message


def of_type(messages: Iterable[Message], wanted: type[M]) -> list[M]:
    """Return the messages of one type."""
    return [message for message in messages if isinstance(message, wanted)]


def first_of(messages: Iterable[Message], wanted: type[M]) -> M | None:
    """Return the first message of one type, if there is one."""
    return next(iter(of_type(messages, wanted)), None)


def nbytes(messages: Iterable[Message]) -> int:
    """Return the bytes of the arrays of some messages."""
    return sum(message.frame().nbytes for message in messages)
