"""What the phases of a step tell each other, the driver, and themselves later: one class each.

A message travels as a frame (:mod:`sparkdl.frame`), whose kind is written down in its class and nowhere else.
Small values lie in the frame's header, vectors are its arrays; neither encoding nor decoding copies a vector.
"""

from sparkdl.allreduce.messages.gradient import Shard
from sparkdl.allreduce.messages.reports import GroupReport, Problems, Report, Reports
from sparkdl.allreduce.messages.state import Average, Master, State
from sparkdl.allreduce.messages.update import Partials, Totals, UpdatedShard, UpdateFacts
from sparkdl.allreduce.messages.wire import M, Message, decode, encode, nbytes, of_type, pack, read

__all__ = [
    "Average",
    "GroupReport",
    "M",
    "Master",
    "Message",
    "Partials",
    "Problems",
    "Report",
    "Reports",
    "Shard",
    "State",
    "Totals",
    "UpdateFacts",
    "UpdatedShard",
    "decode",
    "encode",
    "nbytes",
    "of_type",
    "pack",
    "read",
]
