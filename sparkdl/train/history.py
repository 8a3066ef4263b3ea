"""The history of a run's iterations, in columns so that long runs stay small."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from sparkdl.exceptions import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PHASES = (
    "launch",
    "weights_in",
    "data",
    "compute",
    "gradient_out",
    "shuffle",
    "update",
    "broadcast",
    "other",
)
"""Phases of an iteration, in order; they add up to its ``seconds``. Of several tasks the slowest counts; in a
job of many iterations each has the same share:

- ``launch``: the job beyond its slowest tasks: scheduling, sockets, shuffle files, waiting for other tasks;
  of two jobs the first;
- ``weights_in``: putting the weights together, and loading them into the replica; looking up rows of tables;
- ``data``: gathering the rows, and the Dataset's transform;
- ``compute``: forward and backward; with tables also the pass that tells the next ids;
- ``gradient_out``: cutting the gradient into shards, and encoding them;
- ``shuffle``: of two jobs, the second beyond its slowest update: scheduling, fetching gradients, collecting
  new shards; otherwise 0;
- ``update``: summing gradients, optimizer on the shard, and on rows of tables by their owners;
- ``broadcast``: publishing the new weights;
- ``other``: what is left: the driver between jobs, and attempts that failed.
"""

BYTES = ("weights", "gradients", "state", "shards", "files")
"""Bytes of an iteration:

- ``weights``: weights that each executor receives;
- ``gradients``: shards of gradients, of all ranks;
- ``state``: optimizer state, of all shards;
- ``shards``: updated shards of the weights that the driver receives;
- ``files``: of the files of a scan, columns of row groups that tasks began to read, also those read ahead.
"""

_RENAMED = {"slices": "shards"}  # kinds of bytes by the name that earlier releases gave them

_INTEGERS = ("epoch", "iteration", "samples", "dropped", "lost", "direct")
_SELDOM = ("dropped", "lost", "direct")
_FLOATS = ("loss", "lr", "seconds")
RESERVED = ("kind", "epoch", "iteration", "name")
"""Keys of a validation's row that are no scores."""


def scores_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a validation's row, by ``"set/metric"``."""
    return {f"{row['name']}/{metric}": value for metric, value in row.items() if metric not in RESERVED}


class History(Sequence[dict[str, Any]]):
    """One row per iteration, oldest first, and the scores of every validation.

    A row is a dict with ``epoch`` and ``iteration`` (from 1), ``loss``, ``samples``, ``dropped`` (rows that
    slow tasks left out, see :class:`sparkdl.train.DropStragglers`), ``lost`` (partitions that had lost the
    state of their own steps or of their codec, see :class:`sparkdl.train.LocalSteps`), ``direct`` (1 if tasks
    exchanged among themselves, 0 if by shuffles), ``lr``, ``seconds``, ``phases`` (seconds by name, see
    :data:`PHASES`), ``bytes`` (see :data:`BYTES`) and ``extras`` (what a training step of one's own returned
    besides the loss; empty otherwise). In memory a row takes eight bytes per value.

    Attributes:
        validations: one dict per validation, oldest first: ``epoch``, ``iteration`` and ``name`` of the
            validation set, and the value of each metric.
        new_rows: one dict for each time the run went on with other rows (``fit(..., rows="new")``), oldest
            first: what had been completed by then (``epoch``, ``iteration``, ``samples``, ``seconds``,
            ``validations``), the number of ``rows`` before and of those ``now``, and how many were ``left``
            of the epoch that ended there.
        left_out: how many rows there were before the first one; see :meth:`shortened`.
    """

    def __init__(self) -> None:
        self._integers = {name: array("q") for name in _INTEGERS}
        self._floats = {name: array("d") for name in _FLOATS}
        self._phases = {name: array("d") for name in PHASES}
        self._bytes = {name: array("q") for name in BYTES}
        self._extras: dict[str, array[float]] = {}
        self.validations: list[dict[str, Any]] = []
        self.new_rows: list[dict[str, Any]] = []
        self.left_out = 0

    def shortened(self, keep: int, epoch: int) -> History:
        """Return the last rows, for runs that have no end.

        Args:
            keep: how many, at least 1; of ``new_rows`` as well. All validations stay.
            epoch: rows of this epoch and later ones stay, too.
        """
        early = sum(number < epoch for number in self._integers["epoch"])
        drop = max(0, min(early, len(self) - keep))
        columns = {name: values[drop:] for name, values in self.to_arrays().items()}
        found = History.from_arrays(columns, self.validations, self.new_rows[-keep:])
        found.left_out = self.left_out + drop
        return found

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row.

        Phases and bytes that it lacks are zero, extras NaN. A phase, kind of bytes or extra that no
        row had before becomes a new column, filled likewise for the rows so far.
        """
        for name in _INTEGERS:
            self._integers[name].append(row.get(name, 0) if name in _SELDOM else row[name])
        for name in _FLOATS:
            self._floats[name].append(row[name])
        before = len(self) - 1
        _extend(self._phases, {k: float(v) for k, v in row["phases"].items()}, before, "d", 0.0)
        _extend(self._bytes, {k: int(v) for k, v in row["bytes"].items()}, before, "q", 0)
        extras = {k: float(v) for k, v in row.get("extras", {}).items()}
        _extend(self._extras, extras, before, "d", math.nan)

    def add_scores(self, iteration: int, epoch: int, name: str, scores: Mapping[str, float]) -> None:
        """Add what a validation found.

        Args:
            iteration: completed iterations.
            epoch: epoch of the last of them, from 1.
            name: name of the validation set.
            scores: value by metric.

        Raises:
            ConfigError: if a metric is called like one of the row's own keys.
        """
        if clash := [key for key in RESERVED if key in scores]:
            raise ConfigError(f"validation {name!r}: a metric is called {clash[0]!r}; give it another name")
        self.validations.append({"epoch": epoch, "iteration": iteration, "name": name, **scores})

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all columns as arrays, by the names that :meth:`column` takes."""
        # np.array copies: a view of a column would keep it from growing.
        return {name: np.array(column) for name, column in self._columns().items()}

    @classmethod
    def from_arrays(
        cls,
        columns: Mapping[str, NDArray[Any]],
        validations: Sequence[Mapping[str, Any]],
        new_rows: Sequence[Mapping[str, Any]] = (),
    ) -> History:
        """Make a history of the columns, validations and changes of rows of another."""
        history = cls()
        groups = {"phases": history._phases, "extras": history._extras}
        for name, values in columns.items():
            group, _, key = name.partition(".")
            if name in history._integers:
                history._integers[name] = array("q", values.tolist())
            elif name in history._floats:
                history._floats[name] = array("d", values.tolist())
            elif group == "bytes":
                history._bytes[_RENAMED.get(key, key)] = array("q", values.tolist())
            else:
                groups[group][key] = array("d", values.tolist())
        zeros = bytes(8 * len(history))
        for name in set(_SELDOM) - columns.keys():  # written by an earlier release
            history._integers[name] = array("q", zeros)
        for name in set(PHASES) - {key.removeprefix("phases.") for key in columns}:
            history._phases[name] = array("d", zeros)
        history._bytes |= {name: array("q", zeros) for name in BYTES if not history._bytes[name]}
        history.validations = [dict(row) for row in validations]
        history.new_rows = [dict(row) for row in new_rows]
        return history

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
        row: dict[str, Any] = {name: column[index] for name, column in self._integers.items()}
        row |= {name: column[index] for name, column in self._floats.items()}
        row["phases"] = {name: column[index] for name, column in self._phases.items()}
        row["bytes"] = {name: column[index] for name, column in self._bytes.items()}
        extras = {name: column[index] for name, column in self._extras.items()}
        row["extras"] = {name: value for name, value in extras.items() if not math.isnan(value)}
        return row

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, such as ``"loss"``, ``"phases.compute"`` or ``"extras.penalty"``."""
        return tuple(self._columns())

    def column(self, name: str) -> list[Any]:
        """Return one value of every row: a row's key, ``"phases.compute"``, ``"bytes.state"`` ...

        Raises:
            KeyError: if there is no such column; the message lists those there are.
        """
        columns = self._columns()
        if name not in columns:
            raise KeyError(f"{name!r} is not one of {', '.join(columns)}")
        return list(columns[name])

    def _columns(self) -> dict[str, array[Any]]:
        columns: dict[str, array[Any]] = {**self._integers, **self._floats}
        groups: dict[str, dict[str, array[Any]]] = {}
        groups |= {"phases": self._phases, "bytes": self._bytes, "extras": self._extras}
        for group, members in groups.items():
            columns |= {f"{group}.{name}": column for name, column in members.items()}
        return columns

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row per iteration and the columns of :attr:`columns`.

        The validations are another table: ``pandas.DataFrame(history.validations)``.
        """
        import pandas as pd

        return pd.DataFrame(self.to_arrays())

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per line: iterations and validations in the order of their iteration.

        Iterations have ``"kind": "iteration"`` and the keys of a row, validations
        ``"kind": "validation"`` and theirs, entries of :attr:`new_rows`, which come first,
        ``"kind": "new_rows"``. NaN and infinities become ``null``.

        Args:
            path: a local file, or any address that fsspec opens, such as ``s3://...``.
        """
        import fsspec

        with fsspec.open(str(path), "w", encoding="utf-8") as file:
            file.writelines(json_line("new_rows", change) for change in self.new_rows)
            waiting = sorted(self.validations, key=lambda scores: int(scores["iteration"]))
            position = 0
            for row in self:
                while position < len(waiting) and waiting[position]["iteration"] < row["iteration"]:
                    file.write(json_line("validation", waiting[position]))
                    position += 1
                file.write(json_line("iteration", row))
            file.writelines(json_line("validation", scores) for scores in waiting[position:])

    def plot(self) -> Figure:
        """Draw loss, validation scores, learning rate and seconds by phase; needs matplotlib.

        Notebooks show the figure by themselves; elsewhere, save it: ``history.plot().savefig("run.png")``.

        Raises:
            ImportError: if matplotlib is missing.
        """
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ImportError("History.plot() draws with matplotlib: pip install matplotlib") from None
        from sparkdl.train.plot import plot

        return plot(self)

    def __repr__(self) -> str:
        last = f", last loss {self[-1]['loss']:.6g}" if len(self) else ""
        return f"History({len(self)} iterations{last})"

    def _repr_html_(self) -> str:
        from sparkdl.train.shown import history

        return history(self)


def json_line(kind: str, row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON; what JSON cannot say (NaN, infinities) is ``null``."""
    return json.dumps({"kind": kind, **without_nan(row)}, allow_nan=False) + "\n"


def without_nan(value: Any) -> Any:
    """Return a value that JSON can say: NaN and infinities in it become ``None``."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else without_nan(float(value))


def _extend(columns: dict[str, array[Any]], values: dict[str, Any], before: int, code: str, gap: Any) -> None:
    """Add one value to every column; those that are new begin with ``before`` gaps."""
    for name in values:
        if name not in columns:
            columns[name] = array(code, [gap]) * before
    for name, column in columns.items():
        column.append(values.get(name, gap))
