"""A checkpoint for each batch of a stream: the batch is learned if, and only if, it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from sparkdl.online.ledger import Ledger
from sparkdl.saved.identity import Identity, identity_of
from sparkdl.train.checkpoint import Path
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState


class Commit(Checkpoint):
    """Writes a checkpoint at the end of a run that went well, and never else; a write that fails is an error.

    What a failed run has learned of a batch counts for nothing: the batch comes again, and begins with the
    checkpoint before it.
    """

    # returns the ledger with this batch, for the number of completed iterations
    entry: Callable[[int], Ledger] = staticmethod(lambda iteration: Ledger())

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep=None, background=False, max_failures=0)
        self._state: Mapping[str, Any] = {}

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return that the weights are not needed before the end."""
        return False

    def on_boundary(self, run: Run, last: bool) -> None:
        """Write at the end, unless an error or Ctrl-C has ended the run."""
        if last and run.error is None and run.stopped != "interrupt":
            self._state = self.entry(run.state.iteration).state_dict()
            super().on_boundary(run, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger with this batch."""
        return dict(self._state)


def begun(module: nn.Module, point: ResumePoint | None) -> Identity | None:
    """Return of which run a module is that training goes on with; ``None`` if it is of none."""
    found = identity_of(module)
    return Identity("", point.state.iteration) if found is None and point is not None else found


def continued(point: ResumePoint | None, own: Identity | None) -> dict[str, Any]:
    """Return what ``fit`` goes on from; the same start goes on from the last commit of this program."""
    if point is None:
        return {}
    continues = own is not None and own.is_same(point.identity)
    return {"resume": replace(point, continues=continues), "rows": "new"}


def ledger_of(point: ResumePoint | None) -> Ledger:
    """Return which batches a checkpoint has learned; none if a plain run has written it."""
    return Ledger.read(point.hooks.get(f"{Commit.__name__}.0", {})) if point is not None else Ledger()
