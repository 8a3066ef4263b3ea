"""The result of a search."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from sparkdl import html
from sparkdl.exceptions import ConfigError
from sparkdl.train.checkpoint import load_weights
from sparkdl.tune import shown
from sparkdl.tune.running.advance import unpacked_in
from sparkdl.tune.trial import Trial, best_first, schedule_of
from sparkdl.wire import frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class BestTrial:
    """The best state of a search.

    Attributes:
        number: of the trial.
        params: with which it was trained last.
        epoch: completed epochs.
        value: the metric then.
        copies: when population-based training has replaced the trial, see :class:`Trial`.
        rows: how many rows of a table it was trained on, if an estimator has chosen batch or module by their
            number.
    """

    number: int
    params: Mapping[str, Any]
    epoch: int
    value: float
    copies: Sequence[Mapping[str, Any]] = ()
    rows: int | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search has found.

    Attributes:
        best: the best state at the end of a rung; ``None`` if no trial has one.
        trials: all trials, by number.
        metric: by which they were compared.
        mode: ``"max"`` or ``"min"``.
        stopped_by: ``"done"``, ``"budget"``, ``"timeout"``, ``"interrupt"`` (Ctrl-C) or ``"error"``.
        epochs: how many epochs all trials have run.
        rungs: how many rungs have run.
        replayed: how many of them had run before the search was resumed.
        logarithmic: params whose logarithms the space tells apart.
    """

    best: BestTrial | None
    trials: Sequence[Trial]
    metric: str
    mode: Literal["max", "min"]
    stopped_by: str
    epochs: int
    rungs: int
    replayed: int = 0
    logarithmic: Sequence[str] = ()
    _state: bytes | None = None
    _module: Callable[[Mapping[str, Any]], nn.Module] | None = None

    def get_best(self) -> BestTrial:
        """Return the best state.

        Raises:
            ConfigError: if there is none.
        """
        if self.best is None:
            told = "".join(f"; {line}" for line in shown.failures(self.trials))
            raise ConfigError(
                f"the search has no best trial: none has ended a rung with a finite value{told}"
            )
        return self.best

    def schedule(self) -> list[dict[str, Any]]:
        """Return which params have trained the best state; population-based training changes them on the way.

        Returns:
            For each change the epoch after which the params held, as ``epoch``, and ``params``; the first
            from epoch 0. It follows the weights through the trials that were copied.

        Raises:
            ConfigError: if there is no best state.
        """
        best = self.get_best()
        return schedule_of(self.trials, best.number, best.epoch)

    def module(self) -> nn.Module:
        """Return the module of the best state.

        Raises:
            ConfigError: if there is none, or it has several, one for each fold.
        """
        best = self.get_best()
        if self._state is None or self._module is None:
            raise ConfigError("a search that was loaded has no module of its own; take the model's bestModel")
        if frame.unpack(self._state).meta["kind"] == "folds":
            raise ConfigError(
                "the search has trained a module for each fold; train one on all rows with best.params"
            )
        module = self._module(best.params)
        with tempfile.TemporaryDirectory(prefix="sparkdl-tune-") as folder:
            path = Path(folder) / "best"
            unpacked_in(self._state, path)
            load_weights(path, module)
        return module.eval()

    def dataframe(self) -> pd.DataFrame:
        """Return one row per trial: status, epochs, seconds, last values, params as ``params.*``.

        If trials failed, ``error`` has what they raised.
        """
        import pandas as pd

        rows = []
        failed = any(trial.error for trial in self.trials)
        for trial in self.trials:
            last = trial.reports[-1] if trial.reports else {}
            rows.append(
                {
                    "trial": trial.number,
                    "status": trial.status,
                    "epochs": trial.epochs,
                    "seconds": trial.seconds,
                    **{name: value for name, value in last.items() if name != "epoch"},
                    **{f"params.{name}": value for name, value in trial.params.items()},
                    **({"error": trial.error} if failed else {}),
                }
            )
        return pd.DataFrame(rows)

    def curves(self) -> pd.DataFrame:
        """Return one row per trial and epoch, with all values."""
        import pandas as pd

        rows = [{"trial": trial.number, **report} for trial in self.trials for report in trial.reports]
        # Without any report there would be no columns.
        return pd.DataFrame(rows, columns=None if rows else ["trial", "epoch"]).astype({"epoch": int})

    def ranked(self) -> list[Trial]:
        """Return the trials, the best first by their last value."""
        return best_first(self.trials)

    def plot(self) -> Figure:
        """Draw learning curves, and the params of all trials as parallel coordinates; needs matplotlib.

        Raises:
            ImportError: if matplotlib is missing.
        """
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ImportError("SearchResult.plot() draws with matplotlib: pip install matplotlib") from None
        from sparkdl.tune.plot import plot

        best = None if self.best is None else self.best.number
        return plot(self.trials, self.metric, self.mode, best, self.logarithmic)

    def value_of(self, trial: Trial) -> float:
        """Return the last value of a trial as the metric has it; NaN if there is none."""
        return shown.metric_value(trial, self.mode)

    def __repr__(self) -> str:
        best = (
            "none" if self.best is None else f"{self.metric}={self.best.value:.6g} {dict(self.best.params)}"
        )
        failed = sum(trial.status == "failed" for trial in self.trials)
        told = f", {failed} failed" if failed else ""
        return f"SearchResult({len(self.trials)} trials{told}, {self.epochs} epochs, best {best})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {
            "trials": len(self.trials),
            "epochs": self.epochs,
            "stopped by": self.stopped_by,
            **{f"error {n + 1}": line for n, line in enumerate(shown.failures(self.trials))},
        }
        if self.best is not None:
            facts |= {f"best {self.metric}": f"{self.best.value:.6g}", "of trial": self.best.number}
        return html.block("Search", facts, shown.table_html(self.trials, self.metric, self.mode))

    def __len__(self) -> int:
        return len(self.trials)
