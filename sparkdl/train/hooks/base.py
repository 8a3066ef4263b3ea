"""Hooks: methods that a run calls at its turning points, on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.train.options.triggers import Trigger

if TYPE_CHECKING:
    from sparkdl.train.run import Run
    from sparkdl.train.state import TrainState


class Hook:
    """Base class: every method does nothing, so a hook overrides what it needs.

    Methods run on the driver, in the order in which the hooks were given. They may read everything
    of the :class:`~sparkdl.train.run.Run`, stop it, freeze and unfreeze parameters, and replace
    the weights; an exception ends the run and reaches the caller of ``fit``.

    Attributes:
        gradients: trigger for iterations whose ``run.gradients()`` the hook reads. It gets
            the states before and after the preceding iteration. ``None`` for never: then
            gradients stay on the executors.
        unfreezes: patterns of parameters that the module has frozen and that this hook may unfreeze
            later; they take part in the exchange from the beginning.
    """

    gradients: Trigger | None = None
    unfreezes: Sequence[str] = ()

    def on_train_begin(self, run: Run) -> None:
        """Run before the first iteration; the partition store is built."""

    def on_train_end(self, run: Run) -> None:
        """Run after the last iteration, also after an error or Ctrl-C."""

    def on_epoch_begin(self, run: Run) -> None:
        """Run before the first iteration of an epoch."""

    def on_epoch_end(self, run: Run) -> None:
        """Run after the last iteration of an epoch, and after its validation."""

    def on_iteration_begin(self, run: Run) -> None:
        """Run before an iteration; ``run.state`` is the state before it."""

    def on_iteration_end(self, run: Run) -> None:
        """Run after an iteration; ``run.history[-1]`` is its row."""

    def on_boundary(self, run: Run, last: bool) -> None:
        """Run between two iterations, after all other methods: for checkpoints.

        After ``on_iteration_end``, validation and ``on_epoch_end`` of all hooks. And once more at the end of
        the run, before ``on_train_end`` of any hook, also after an error or Ctrl-C, but not after a second
        Ctrl-C.

        Args:
            run: the run.
            last: whether the run is over. After an error, ``run.error``, hooks and validations may not have
                seen the last iteration.
        """

    def on_resize(self, run: Run, before: int, after: int) -> None:
        """Run after the rows were laid out over another number of partitions (``elastic=``).

        It may set ``run.batch_size`` and ``run.learning_rate_scale`` for what follows.

        Args:
            run: the run, between two iterations.
            before: number of partitions until now.
            after: number of partitions from now on.
        """

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the hook will read the weights, or change anything, after an iteration.

        Iterations run in groups (``iterations_per_job=``), and weights exist at the end of a group. Hooks
        may look at them at any time, but where it was not announced here the rest of a group is undone.

        Args:
            previous: the state before the iteration.
            current: the state after it, of which neither loss nor time is known yet.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return what the hook needs to go on in another run: numbers, strings and numpy arrays by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from another run's :meth:`state_dict`; called after ``on_train_begin``."""

    def on_validation_begin(self, run: Run, name: str) -> None:
        """Run before a validation set is evaluated."""

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Run after a validation set was evaluated.

        Args:
            run: the run; ``run.state`` knows the new score already.
            name: name of the validation set.
            scores: value by metric.
        """
