"""What happened in each iteration, kept in columns so that long runs stay small."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

PHASES = ("launch", "weights_in", "data", "compute", "gradient_out", "shuffle", "update", "broadcast")
"""Phases of an iteration, in order. Seconds of the slowest task where several run:

- ``launch``: job 1 beyond its slowest task: scheduling, sockets, writing the shuffle files;
- ``weights_in``: loading the weights into the replica;
- ``data``: gathering the rows, and the Dataset's transform;
- ``compute``: forward and backward;
- ``gradient_out``: handing the shards to the JVM;
- ``shuffle``: job 2 beyond its slowest update: scheduling, fetching shards, collecting slices;
- ``update``: summing shards, optimizer on the slice;
- ``broadcast``: publishing the new weights.
"""

BYTES = ("weights", "gradients", "state", "slices")
"""Bytes of an iteration: one copy of the weights, all shards, all optimizer state, all new slices."""

_INTEGERS = ("epoch", "iteration", "samples")
_FLOATS = ("loss", "lr", "seconds")


class History(Sequence[dict[str, Any]]):
    """One row per iteration, oldest first.

    A row is a dict with ``epoch`` and ``iteration`` (from 1), ``loss``, ``samples``, ``lr``,
    ``seconds``, ``phases`` (seconds by name, see :data:`PHASES`) and ``bytes`` (see :data:`BYTES`).
    """

    def __init__(self) -> None:
        self._integers = {name: array("q") for name in (*_INTEGERS, *(f"bytes.{b}" for b in BYTES))}
        self._floats = {name: array("d") for name in (*_FLOATS, *(f"phases.{p}" for p in PHASES))}

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; phases and bytes that it lacks are zero."""
        for name in _INTEGERS:
            self._integers[name].append(row[name])
        for name in _FLOATS:
            self._floats[name].append(row[name])
        for phase in PHASES:
            self._floats[f"phases.{phase}"].append(row["phases"].get(phase, 0.0))
        for kind in BYTES:
            self._integers[f"bytes.{kind}"].append(row["bytes"].get(kind, 0))

    def __len__(self) -> int:
        return len(self._integers["iteration"])

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a history of {len(self)} iterations")
        row: dict[str, Any] = {name: self._integers[name][index] for name in _INTEGERS}
        row |= {name: self._floats[name][index] for name in _FLOATS}
        row["phases"] = {phase: self._floats[f"phases.{phase}"][index] for phase in PHASES}
        row["bytes"] = {kind: self._integers[f"bytes.{kind}"][index] for kind in BYTES}
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> list[Any]:
        """Return one value of every row: a row's key, ``"phases.compute"`` or ``"bytes.state"``.

        Raises:
            KeyError: if there is no such column; the message lists those there are.
        """
        columns: dict[str, array[Any]] = {**self._integers, **self._floats}
        if name not in columns:
            raise KeyError(f"{name!r} is not one of {', '.join(columns)}")
        return list(columns[name])

    def __repr__(self) -> str:
        last = f", last loss {self[-1]['loss']:.6g}" if len(self) else ""
        return f"History({len(self)} iterations{last})"
