"""The option ``local_steps``: partitions that step by themselves between two exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sparkdl.exceptions import ConfigError, is_integer

_AVERAGE = partial(torch.optim.SGD, lr=1.0)


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """Let each partition take several optimizer steps on its rows between two exchanges.

    An iteration is then a round of ``steps`` steps, over ``steps * batch_size`` rows. Triggers, schedules,
    hooks and the history count rounds. The Trainer's optimizer, groups, schedule and clipping apply to the
    partitions' own steps. Each partition keeps its optimizer's state. If its executor is lost, or the run is
    resumed, it begins with a fresh state, and the history counts it as ``lost``.

    Args:
        steps: steps of a round; or a mapping from epochs, counted from 0, to the steps from there on:
            ``{0: 1, 5: 8}`` is post-local SGD (Lin et al., ICLR 2020).
        outer: factory of the outer optimizer, whose gradient is the mean of the partitions'
            pseudo-gradients. By default the weights become the mean of the partitions' weights (local SGD;
            Stich, ICLR 2019). For DiLoCo (arXiv 2311.08105) give AdamW to the Trainer, and here SGD of rate
            0.7 with Nesterov's momentum of 0.9.

    Raises:
        ConfigError: if a number of steps or an epoch cannot be one.
    """

    steps: int | Mapping[int, int] = 8
    outer: Callable[[Any], torch.optim.Optimizer] = _AVERAGE

    def __post_init__(self) -> None:
        counts = self.steps if isinstance(self.steps, Mapping) else {0: self.steps}
        if 0 not in counts:
            raise ConfigError(f"LocalSteps: steps={self.steps!r}: expected an entry for epoch 0")
        for epoch, count in counts.items():
            if not is_integer(epoch, 0) or not is_integer(count, 1):
                raise ConfigError(
                    f"LocalSteps: steps={self.steps!r}: expected an integer of at least 1, or a mapping from "
                    "epochs, counted from 0, to such integers"
                )
        if not callable(self.outer):
            raise ConfigError(
                f"LocalSteps: outer={self.outer!r:.100}: expected a factory such as "
                "partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)"
            )

    def at(self, epoch: int) -> int:
        """Return the steps of a round in an epoch, counted from 0."""
        if not isinstance(self.steps, Mapping):
            return self.steps
        return self.steps[max(first for first in self.steps if first <= epoch)]
