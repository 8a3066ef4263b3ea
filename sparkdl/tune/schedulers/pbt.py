"""Population-based training (Jaderberg et al., 2017)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from sparkdl import seeding
from sparkdl.exceptions import ConfigError, integer_option
from sparkdl.tune.schedulers.moves import Go, Outline, Scheduler, Verdict
from sparkdl.tune.trial import Trial, best_first


class PBT(Scheduler):
    """Population-based training: the worst trials go on as copies of the best ones, with other params.

    All trials of the population train side by side. After each ``interval`` epochs, when all have come so
    far, each of the worst ones *exploits* one of the best: it takes over its weights, optimizer state and
    params; and *explores*: it perturbs these. So a search finds a schedule of params and not one choice. A
    trial whose loss became infinite is one of the worst.

    Args:
        interval: epochs between two exchanges.
        perturb: names of the params that change; all numbers of the space that are not integers by default.
            What changes the shape of the weights, or ``batch_size``, cannot be among them.
        quantile: share of the trials that are replaced, and share that they copy, up to a half.
        resample: probability that a param is drawn anew instead of perturbed.
        factors: by one of which a number is multiplied; it stays within its bounds. An integer, or a number
            in steps, moves by a step at least.

    Raises:
        ConfigError: if an argument cannot work; when the search begins, if a name is not in the space, or
            there are fewer than two trials.
    """

    def __init__(
        self,
        interval: int = 1,
        perturb: Sequence[str] | None = None,
        quantile: float = 0.25,
        resample: float = 0.25,
        factors: tuple[float, ...] = (0.8, 1.25),
    ) -> None:
        self.interval = integer_option("PBT", "interval", interval, 1)
        if isinstance(perturb, str):
            raise ConfigError(f"PBT(perturb={perturb!r}): expected a list of names, such as [{perturb!r}]")
        if not 0 < quantile <= 0.5:
            raise ConfigError(f"PBT(quantile={quantile!r}): expected a share above 0 and up to 0.5")
        if not 0 <= resample <= 1:
            raise ConfigError(f"PBT(resample={resample!r}): expected a probability")
        self.perturb = None if perturb is None else list(perturb)
        self.quantile = quantile
        self.resample = resample
        self.factors = tuple(factors)

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`.

        Raises:
            ConfigError: if a name is not in the space, or the population is too small.
        """
        known = outline.space.distributions
        unknown = [name for name in self.perturb or () if name not in known]
        if unknown:
            raise ConfigError(f"PBT(perturb=[{unknown[0]!r}, ...]): the space has {', '.join(known)}")
        if outline.trials < 2:
            raise ConfigError(f"PBT: trials={outline.trials} is no population; expected at least 2")
        floats = [name for name, kind in known.items() if isinstance(kind, FloatDistribution)]
        self._names = self.perturb if self.perturb is not None else floats
        self._outline = outline
        self._epoch = 0
        self._moves: deque[Go] = deque()

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return min(self.interval, self._outline.max_epochs)

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        return "pause"

    def resumed(self, trials: Sequence[Trial], exhausted: bool) -> Go | None:
        """See :class:`Scheduler`."""
        if not self._moves:
            self._plan(trials)
        return self._moves.popleft() if self._moves else None

    def _plan(self, trials: Sequence[Trial]) -> None:
        """Decide how all trials go on, once all have come as far."""
        if len(trials) < self._outline.trials or any(trial.status == "running" for trial in trials):
            return
        alive = [trial for trial in trials if trial.status in ("paused", "diverged")]
        reached = max((trial.epochs for trial in alive), default=0)
        if reached >= self._outline.max_epochs or reached == self._epoch:
            return
        self._epoch = reached
        until = min(reached + self.interval, self._outline.max_epochs)
        ranked = best_first(alive)
        many = int(len(ranked) * self.quantile) or (1 if len(ranked) > 1 else 0)
        best = [trial for trial in ranked[:many] if trial.status == "paused"]
        worst = {trial.number for trial in ranked[len(ranked) - many :]}
        copies, others = [], []
        for trial in alive:
            replaced = trial.number in worst or trial.status == "diverged"
            if replaced and best and trial not in best:
                random = np.random.default_rng(
                    seeding.derive(seeding.POPULATION, self._outline.seed, reached, trial.number)
                )
                donor = best[int(random.integers(len(best)))]
                copies.append(Go(trial.number, until, donor.number, self._explored(donor.params, random)))
            elif trial.status == "paused":
                others.append(Go(trial.number, until))
        # Copies begin before the trials that they copy go on.
        self._moves.extend([*copies, *others])

    def _explored(self, params: Mapping[str, Any], random: np.random.Generator) -> dict[str, Any]:
        """Return params with those perturbed that may change."""
        found = dict(params)
        for name in self._names:
            found[name] = self._perturbed(name, params[name], random)
        return found

    def _perturbed(self, name: str, value: Any, random: np.random.Generator) -> Any:
        kind = self._outline.space.distributions[name]
        anew = bool(random.random() < self.resample)
        if isinstance(kind, CategoricalDistribution):
            if anew:
                return kind.choices[int(random.integers(len(kind.choices)))]
            place = kind.choices.index(value) + int(random.choice([-1, 1]))
            return kind.choices[min(max(place, 0), len(kind.choices) - 1)]
        assert isinstance(kind, FloatDistribution | IntDistribution)
        step = kind.step or 0.0
        if anew:  # with half a step around it, the first and last one are as probable as the others
            low, high = kind.low - step / 2, kind.high + step / 2
            drawn = (
                float(np.exp(random.uniform(np.log(low), np.log(high))))
                if kind.log
                else float(random.uniform(low, high))
            )
        else:
            factor = float(random.choice(self.factors))
            drawn = value * factor
            if step and abs(drawn - value) < step and factor != 1:  # 1.25 times 1 would be 1 again
                drawn = value + math.copysign(step, drawn - value or factor - 1)
        if step:
            drawn = kind.low + round((drawn - kind.low) / step) * step
        drawn = min(max(drawn, kind.low), kind.high)
        return round(drawn) if isinstance(kind, IntDistribution) else float(drawn)
