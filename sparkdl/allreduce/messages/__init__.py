"""Messages of a step's phases to each other, to the driver, and to later ones: one class each.

A message travels as a frame (:mod:`sparkdl.wire.frame`), whose kind is written down in its class alone.
Small values lie in the frame's header, vectors are its arrays; neither encoding nor decoding copies a vector.
"""

from sparkdl.allreduce.messages.reports import GroupReport, Problems, Report, Reports
from sparkdl.allreduce.messages.shard import Partials, Shard, Totals, UpdatedShard, UpdateFacts
from sparkdl.allreduce.messages.state import Average, Master, State
from sparkdl.allreduce.messages.tables import FoundRows, OwnedRows, RowGradients, Together, WantedRows
from sparkdl.allreduce.messages.wire import (
    M,
    Message,
    decode,
    encode,
    nbytes,
    of_type,
    opened,
    pack,
    read,
    together,
)

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
    "nbytes",
    "of_type",
    "opened",
    "pack",
    "read",
    "together",
]
