"""Scalars, histograms, the graph and embeddings for TensorBoard."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.summary.interval import Interval, Thinning
from sparkdl.summary.params import params
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.target import Target
from sparkdl.train.options.triggers import Trigger
from sparkdl.train.passes.sweep import first_inputs
from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from sparkdl.train.run import Run
    from sparkdl.train.state import TrainState


class TensorBoard(Hook):
    """Writes an event file for TensorBoard.

    Tags are ``train/loss``, ``train/lr``, ``train/records_per_second`` and
    ``train/seconds_per_iteration``, ``phases/compute`` and so on (seconds), ``bytes/gradients`` and so on,
    ``extras/...``, and for a validation set called ``val`` ``val/accuracy`` and so on. A point stands for all
    iterations since the one before: its loss is their mean.

    Args:
        logdir: local folder, or an address that fsspec opens; for a remote one, a local copy is written
            and copied there once a minute, at most, and at the end.
        scalars: when a point is written; by default after every iteration at first, then more and
            more rarely, see :class:`sparkdl.summary.Thinning`.
        histograms: when histograms of the weights are written, also before the first iteration. Those
            of the gradients follow one iteration later: they come to the driver only when wanted.
        graph: whether to write the module's graph, traced on two rows.
        embeddings: by the name of a parameter of shape (rows, dimensions), one label per row or
            ``None``; written for the projector at the end of the run.

    Raises:
        ConfigError: if the address cannot be opened.
        ImportError: if tensorboard is missing.
    """

    def __init__(
        self,
        logdir: str | Path,
        *,
        scalars: Trigger | None = None,
        histograms: Trigger | None = None,
        graph: bool = False,
        embeddings: Mapping[str, Sequence[str] | None] | None = None,
    ) -> None:
        if find_spec("tensorboard") is None:
            raise ImportError("TensorBoard(...) writes with the tensorboard package: pip install tensorboard")
        self._target = Target("logdir", logdir, folder=True)
        self._scalars = scalars or Thinning()
        self.gradients = histograms
        self._graph = graph
        self._embeddings = dict(embeddings or {})
        self._writer: SummaryWriter | None = None
        self._interval = Interval()
        self._gradient_follows = False

    def on_train_begin(self, run: Run) -> None:
        """Open the event file; write options, first weights and graph.

        Raises:
            ConfigError: if there is no such embedding, or it has another number of labels than rows.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._check_embeddings(run)
        self._interval, self._gradient_follows = Interval(), False
        # Text is small and a crash loses what is not flushed, so flush more often than by default.
        self._writer = writer = SummaryWriter(str(self._target.open()), flush_secs=10)
        table = "".join(f"|{name}|`{value}`|\n" for name, value in params(run).items())
        writer.add_text("options", f"|option|value|\n|-|-|\n{table}", run.state.iteration)
        if self.gradients is not None:
            self._write_histograms("weights", run.parameters(), run.state.iteration)
        if self._graph:
            self._write_graph(run)
        writer.flush()
        self._target.push(strict=True)

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether histograms are due."""
        return self.gradients is not None and self.gradients.foresees(previous, current)

    def on_iteration_end(self, run: Run) -> None:
        """Write all points that are due."""
        step = run.state.iteration
        self._interval.add(run.history[-1])
        if self._scalars(run.previous, run.state):
            self._write_scalars(self._interval.take(), step)
        if self._gradient_follows:
            self._write_histograms("gradients", run.gradients(), step)
        self._gradient_follows = self.gradients is not None and self.gradients(run.previous, run.state)
        if self._gradient_follows:
            self._write_histograms("weights", run.parameters(), step)
        if self._writer is not None and self._target.due():
            self._writer.flush()
            self._target.push()

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Write the scores."""
        self._write_scalars({f"{name}/{metric}": v for metric, v in scores.items()}, run.state.iteration)

    def on_train_end(self, run: Run) -> None:
        """Write the last point and the embeddings, and close the event file."""
        if self._writer is None:
            return
        writer, step = self._writer, run.state.iteration
        self._write_scalars(self._interval.take(), step)
        for name, labels in self._embeddings.items():
            matrix = torch.from_numpy(np.array(run.parameters()[name]))
            writer.add_embedding(
                matrix, metadata=None if labels is None else list(labels), tag=name, global_step=step
            )
        writer.close()
        self._writer = None
        self._target.close()

    def _write_scalars(self, values: Mapping[str, float], step: int) -> None:
        if self._writer is not None:
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def _write_histograms(self, group: str, arrays: Mapping[str, Array], step: int) -> None:
        for name, values in arrays.items():
            finite = values[np.isfinite(values)]
            if self._writer is not None and finite.size:
                self._writer.add_histogram(f"{group}/{name}", finite, step)

    def _write_graph(self, run: Run) -> None:
        assert self._writer is not None
        try:
            module, inputs = _example(run)
            # The tracer prints and warns about what is of no concern here.
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")
                self._writer.add_graph(module, inputs)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            warnings.warn(
                f"TensorBoard(graph=True): {type(run.module).__name__} cannot be traced, so there is no "
                f"graph ({type(error).__name__}: {reason:.300})",
                UserWarning,
                stacklevel=3,
            )

    def _check_embeddings(self, run: Run) -> None:
        shapes = {p.name: p.shape for p in run.layout.params}
        for name, labels in self._embeddings.items():
            if len(shapes.get(name, ())) != 2:
                matrices = ", ".join(p for p, shape in shapes.items() if len(shape) == 2) or "none"
                raise ConfigError(
                    f"embeddings: {name!r} is not a trainable parameter with two dimensions; there are "
                    f"{matrices}"
                )
            if labels is not None and len(labels) != shapes[name][0]:
                raise ConfigError(
                    f"embeddings: {name!r} has {shapes[name][0]} rows and {len(labels)} labels; expected one "
                    "label per row"
                )


def _example(run: Run) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a copy of the module and the inputs of its first rows, by position."""
    inputs, module = first_inputs(run.data), run.trained_module().eval()
    if isinstance(inputs, Mapping):
        return _ByPosition(module, tuple(inputs)), tuple(inputs.values())
    return module, (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


class _ByPosition(nn.Module):
    """Gives keyword inputs a position: that is how a module is traced."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *inputs: Any) -> Any:
        """Call the module with the inputs by name."""
        return self.module(**dict(zip(self.names, inputs, strict=True)))
