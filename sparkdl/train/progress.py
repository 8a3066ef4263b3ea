"""The progress bar: epoch, loss and records per second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from sparkdl.train.state import TrainState
from sparkdl.train.step import Outcome


class Progress:
    """A tqdm bar over the iterations of each epoch; does nothing when switched off.

    Args:
        shown: whether to show it.
        name: name of the fit.
        steps: iterations per epoch.
    """

    def __init__(self, shown: bool, name: str, steps: int) -> None:
        self._shown = shown
        self._name = name
        self._steps = steps
        self._bar: Any = None
        self._since = time.perf_counter()
        self._samples = 0

    def __enter__(self) -> Progress:
        return self

    def update(self, state: TrainState, outcome: Outcome) -> None:
        """Show an iteration that has just ended; ``state`` is the state after it."""
        if not self._shown:
            return
        if self._bar is None:
            self._open(state)
        self._samples += outcome.samples
        rate = self._samples / max(time.perf_counter() - self._since, 1e-9)
        self._bar.set_postfix_str(f"loss={state.loss:.4f}, {rate:.0f} records/s", refresh=False)
        self._bar.update()
        if state.step == 0:
            self._close()

    def _open(self, state: TrainState) -> None:
        from tqdm.auto import tqdm

        epoch = state.epoch + (state.step > 0)
        # In a log file every refresh is a line, so write few.
        quiet = not sys.stderr.isatty()
        self._bar = tqdm(
            total=self._steps,
            initial=max(state.step - 1, 0),
            desc=f"{self._name} epoch {epoch}",
            unit="it",
            mininterval=30.0 if quiet else 0.2,
            dynamic_ncols=True,
        )
        self._since, self._samples = time.perf_counter(), 0

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
