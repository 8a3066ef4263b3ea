"""A trial goes on by some epochs: a fit from the state that it has to the state that it leaves."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, NonFiniteError
from sparkdl.train.checkpoint import latest
from sparkdl.train.history import History, scores_of
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.options.triggers import MaxEpoch
from sparkdl.train.trainer import Trainer
from sparkdl.wire import frame
from sparkdl.wire.frame import Packed, Parts
from sparkdl.wire.private import local_folders, make_folder, opener

Ending = Literal["", "diverged", "failed", "finished"]
"""Why a trial will not go on: its loss is not finite, it has raised, or a hook of its own has ended it."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a trial has done."""

    reports: list[dict[str, float]]  # for each epoch its number, from 1, and its values by name
    ending: Ending  # why it will not go on; empty if it can
    state: Packed | None  # the files of its checkpoint, as a frame; of a trial that diverged or failed none
    seconds: float  # how long it took
    error: str = ""  # what it has raised, if it failed


def advance(
    trainer: Trainer,
    data: Dataset,
    validation: Dataset | Mapping[str, Dataset] | None,
    until: int,
    done: int,
    state: Packed | None,
) -> Advanced:
    """Train until so many epochs are completed."""
    own = trainer.config
    with tempfile.TemporaryDirectory(dir=_scratch(), prefix="sparkdl-trial-") as name:
        folder = Path(name)
        # At the end alone: the trigger of checkpoints in between never fires before.
        checkpoint = _Handed(folder / "to", MaxEpoch(until + 1), keep=1, background=False, shared=False)
        trainer.config = replace(
            own,
            hooks=[*own.hooks, checkpoint],
            end_when=MaxEpoch(until),
            progress=False,
            commit_every=0,
        )
        begun: Any = False
        if state is not None:
            begun = folder / "from"
            unpacked_in(state, begun)
        try:
            result = trainer.fit(data, validation, resume=begun)
        except NonFiniteError as error:
            failed = error.result.history if error.result is not None else History()
            return Advanced(reports_of(failed, done), "diverged", None, _seconds(failed, done))
        finally:
            trainer.config = own
        written = latest(folder / "to")
        assert written is not None
        left = _pack(Path(written))
    ending: Ending = "finished" if result.stopped_by == "hook" else ""
    return Advanced(reports_of(result.history, done), ending, left, _seconds(result.history, done))


class _Handed(Checkpoint):
    """A checkpoint that is gone at once: no next driver is to look for it."""

    def _attempt(self) -> None:
        return None


def _scratch() -> Path:
    """Return where tasks may write: a folder that Spark removes when the executor stops."""
    folder = local_folders()[0]
    make_folder(folder)
    return folder


def reports_of(history: History, done: int) -> list[dict[str, float]]:
    """Return the values of each epoch of a history after the first ``done`` ones.

    They are ``loss``, the mean training loss over the epoch's rows, and each validation score at its end by
    set and metric, such as ``val/accuracy``: those inside an epoch are not of the state that a rung leaves.
    """
    epochs = history.column("epoch")
    ends = dict(zip(epochs, history.column("iteration"), strict=True))
    losses, samples = history.column("loss"), history.column("samples")
    totals: dict[int, list[float]] = {}
    for epoch, loss, count in zip(epochs, losses, samples, strict=True):
        total = totals.setdefault(epoch, [0.0, 0.0])
        total[0] += loss * count
        total[1] += count
    reports = {
        epoch: {"epoch": float(epoch), "loss": total / count if count else math.nan}
        for epoch, (total, count) in totals.items()
        if epoch > done
    }
    for row in history.validations:
        if row["epoch"] in reports and row["iteration"] == ends[row["epoch"]]:
            reports[row["epoch"]] |= {name: float(value) for name, value in scores_of(row).items()}
    return [reports[epoch] for epoch in sorted(reports)]


def _seconds(history: History, done: int) -> float:
    pairs = zip(history.column("epoch"), history.column("seconds"), strict=True)
    return float(sum(seconds for epoch, seconds in pairs if epoch > done))


def _pack(folder: Path) -> Parts:
    """Return the files of a folder as a frame."""
    files = {path.name: np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(folder.iterdir())}
    return frame.pack({"kind": "state", "checkpoint": folder.name}, files)


def unpacked_in(state: Packed, folder: Path) -> None:
    """Write the checkpoint that a state holds to a folder."""
    make_folder(folder)
    for name, data in frame.unpack(state).arrays.items():
        if Path(name).name != name:
            raise ConfigError(f"a trial's state names a file {name!r:.100}: expected a plain name")
        with open(folder / name, "xb", opener=opener) as file:
            file.write(data.data)
