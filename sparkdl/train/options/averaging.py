"""Weight averaging: with which weight an iteration's new weights enter the average.

The average lies beside the weights in every shard and takes in the new weights ``w`` as
``average += weight * (w - average)``. An :class:`Averaging` says, on the driver, how large that
weight is; 0 leaves the average alone, 1 makes it a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkdl.exceptions import ConfigError, integer_option, is_number
from sparkdl.train.options.triggers import EveryEpoch, Trigger, trigger_option
from sparkdl.train.state import TrainState


class Averaging:
    """Base class of the ways to average."""

    def weight(self, previous: TrainState, state: TrainState, count: int) -> float:
        """Return the weight of an iteration's new weights in the average.

        It is asked before the iteration's update, so only the counters of ``state``
        (epoch, iteration, step) are known; its loss, score and seconds are those of ``previous``.

        Args:
            previous: the state before the iteration.
            state: the state after it.
            count: how many earlier iterations had a weight above 0.

        Returns:
            A number from 0 to 1; 1 if ``count`` is 0 and the iteration takes part.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EMA(Averaging):
    """Exponential moving average of the weights after every iteration.

    It starts as a copy of the weights after the first iteration, as
    ``torch.optim.swa_utils.AveragedModel`` does, which gives the same numbers with
    ``get_ema_multi_avg_fn(decay)``.

    Args:
        decay: how much of the average stays in each iteration, in [0, 1).
        warmup: whether the decay grows from 0.18 to its value, as (1 + n) / (10 + n) after n
            iterations: in short runs the first, bad weights are forgotten sooner.

    Raises:
        ConfigError: if the decay is not in [0, 1).
    """

    decay: float = 0.999
    warmup: bool = False

    def __post_init__(self) -> None:
        decay: object = self.decay
        if not is_number(decay) or not 0 <= decay < 1:
            raise ConfigError(f"EMA(decay={decay!r}): expected a number of at least 0 and below 1")

    def weight(self, previous: TrainState, state: TrainState, count: int) -> float:
        """Return 1 - decay, and 1 the first time."""
        if count == 0:
            return 1.0
        decay = min(self.decay, (1 + count) / (10 + count)) if self.warmup else self.decay
        return 1.0 - decay


@dataclass(frozen=True, slots=True, kw_only=True)
class SWA(Averaging):
    """Stochastic weight averaging: the plain mean of the weights at chosen moments.

    Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018,
    arXiv 1803.05407. As there, the weights with which ``start_epoch`` epochs end are the first to
    enter. Running statistics, such as BatchNorm's, are not those of the averaged weights: let the
    averaged module see data in training mode (``torch.optim.swa_utils.update_bn``) before use.

    Args:
        start_epoch: completed epochs before averaging begins.
        every: the moments at which the weights enter. It is asked before the iteration, and so may not depend
            on its loss or time: it has to be ``foreseeable``, see :class:`Trigger`.

    Raises:
        ConfigError: if an argument cannot work.
    """

    start_epoch: int
    every: Trigger = field(default_factory=EveryEpoch)

    def __post_init__(self) -> None:
        integer_option("SWA", "start_epoch", self.start_epoch, 0)
        if not trigger_option("SWA", self.every).foreseeable:
            raise ConfigError(
                f"SWA(every={self.every!r}): expected a trigger of epochs and iterations, such as "
                "EveryEpoch() or EveryIterations(100), for it is asked before the iteration, when neither "
                "its loss nor its time is known; one of your own says by `foreseeable` that it needs neither"
            )

    def weight(self, previous: TrainState, state: TrainState, count: int) -> float:
        """Return 1 / (count + 1) at the chosen moments, else 0."""
        chosen = state.epoch >= self.start_epoch and self.every(previous, state)
        return 1.0 / (count + 1) if chosen else 0.0


def kind_of(averaging: Averaging | None) -> str:
    """Return the name of a way to average, which a checkpoint keeps; empty for none."""
    return "" if averaging is None else type(averaging).__name__
