"""Asking for the params of the next trial, and telling how trials went: Optuna's samplers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sparkdl.exceptions import ConfigError
from sparkdl.tune.space import Space
from sparkdl.tune.trial import Trial


def sampler_of(search: Any, space: Space, seed: int) -> BaseSampler:
    """Return a sampler: a copy of the one that was given, or the one of a name."""
    if isinstance(search, BaseSampler):
        return copy.deepcopy(search)
    made: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "cmaes": lambda: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        "grid": lambda: optuna.samplers.GridSampler(space.grid(), seed=seed),
        "qmc": lambda: optuna.samplers.QMCSampler(seed=seed, warn_independent_sampling=False),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
    }
    if search not in made:
        raise ConfigError(
            f"search={search!r:.100}: expected one of {', '.join(map(repr, made))}, or a sampler of Optuna "
            "such as optuna.samplers.TPESampler(seed=0)"
        )
    if search == "cmaes" and find_spec("cmaes") is None:
        raise ImportError("search='cmaes' needs the package cmaes: pip install cmaes")
    with Quiet():
        return made[search]()


class Asker:
    """Asks a sampler for params, in a study in memory; a study in a storage gets a copy of each trial.

    Before each question the study is made anew of what is known now: trials that are over are complete, those
    that wait or were stopped are pruned at their epoch, those that run are running. So a sampler learns of
    trials that pause for good, and of what they reach when they go on. A search that is resumed asks again
    from the beginning and gets the same answers; nothing of a sampler need be kept. ``first`` are params of
    the first trials, as the space has them; the sampler draws what is not among them. ``sign`` is 1 if larger
    values of the metric are better, else -1; the storage has them as the metric does. ``count`` is how many
    trials a grid has at most.
    """

    def __init__(
        self,
        space: Space,
        sampler: BaseSampler,
        storage: Any,
        name: str,
        *,
        resume: bool = False,
        first: Sequence[Mapping[str, Any]] = (),
        sign: int = 1,
    ) -> None:
        self._space = space
        self._first = first
        self._sign = sign
        self._sampler = sampler
        self._name = name
        self.count = _size(space, sampler)
        if isinstance(sampler, optuna.samplers.GridSampler):
            _begin_with(sampler, first)
            self._first = ()  # points of the grid, each of which has its turn once
        self._asked: list[Any] = []
        self._attributes: dict[str, Any] = {}
        self._shown: Any = None
        self._copies: dict[int, Any] = {}
        if storage is not None:
            with Quiet():
                self._shown = optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="maximize" if sign > 0 else "minimize",
                    load_if_exists=True,
                )
                found = len(self._shown.get_trials(deepcopy=False))
            if found and not resume:
                raise ConfigError(
                    f"storage: the study {name!r} has {found} trials already; choose another name=, or go on "
                    "by folder= and fit(..., resume=True)",
                    code="config-resume",
                )

    def ask(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """Return the params of a new trial."""
        with Quiet():
            study = optuna.create_study(direction="maximize", sampler=self._sampler, study_name=self._name)
            storage = study._storage
            for name, value in self._attributes.items():
                storage.set_study_system_attr(study._study_id, name, value)
            study.add_trials([_as_known(*pair) for pair in zip(self._asked, trials, strict=True)])
            if len(self._asked) < len(self._first):
                study.enqueue_trial(dict(self._first[len(self._asked)]))
            asked = study.ask(self._space.distributions)
            self._asked.append(storage.get_trial(asked._trial_id))
            self._attributes = dict(storage.get_study_system_attrs(study._study_id))
        return {**self._space.constants, **asked.params}

    def show(self, trial: Trial, metric: str, ended: bool) -> None:
        """Bring the copy of a trial in the storage up to date."""
        if self._shown is None:
            return
        with Quiet():
            shown = self._copies.get(trial.number)
            if shown is None:
                shown = self._copies[trial.number] = self._shown_trial(trial)
            if shown is _THERE:
                return
            steps = set(shown.storage.get_trial(shown._trial_id).intermediate_values)
            for epoch, value in trial.values.items():
                if epoch not in steps and math.isfinite(value):
                    shown.report(self._sign * value, epoch)
            if ended:
                if trial.error:
                    shown.set_user_attr("sparkdl.error", trial.error)
                known = math.isfinite(trial.last)
                state = TrialState.COMPLETE if known else TrialState.FAIL
                self._shown.tell(shown, self._sign * trial.reached if known else None, state=state)

    def _shown_trial(self, trial: Trial) -> Any:
        """Return the copy of a trial in the storage, made if a run before this one has not made it."""
        assert self._shown is not None
        for found in self._shown.get_trials(deepcopy=False):
            if found.user_attrs.get("sparkdl.trial") == trial.number:
                if found.state.is_finished():
                    return _THERE
                return optuna.trial.Trial(self._shown, found._trial_id)
        chosen = {name: trial.first_params[name] for name in self._space.distributions}
        self._shown.enqueue_trial(chosen)
        made = self._shown.ask(self._space.distributions)
        made.set_user_attr("sparkdl.trial", trial.number)
        return made


_THERE = object()


def _as_known(asked: FrozenTrial, trial: Trial) -> FrozenTrial:
    """Return a trial as it is to be seen now."""
    found = copy.copy(asked)
    found.intermediate_values = {epoch: v for epoch, v in trial.values.items() if math.isfinite(v)}
    if trial.status == "running":
        return found
    found.datetime_complete = found.datetime_start
    if trial.status == "finished" and math.isfinite(trial.last):
        found.state, found.values = TrialState.COMPLETE, [trial.reached]
    elif found.intermediate_values and trial.status != "failed":
        found.state = TrialState.PRUNED
    else:
        found.state = TrialState.FAIL
    return found


def _size(space: Space, sampler: BaseSampler) -> int | None:
    """Return how many trials a grid has; ``None`` for other samplers."""
    if not isinstance(sampler, optuna.samplers.GridSampler):
        return None
    return math.prod(len(values) for values in sampler._search_space.values())


def _begin_with(sampler: optuna.samplers.GridSampler, first: Sequence[Mapping[str, Any]]) -> None:
    """Let a grid begin with some points; given to Optuna beforehand, they would displace as many others."""
    names, left = sampler._param_names, list(sampler._all_grids)
    begin = []
    for params in first:
        places = [
            place
            for place, point in enumerate(left)
            if all(name in names and _alike(point[names.index(name)], v) for name, v in params.items())
        ]
        if not places:
            raise ConfigError(
                f"first: {dict(params)!r:.200} is no point of the grid, or one that is given twice; expected "
                "distinct points, of which a grid has each once"
            )
        begin.append(left.pop(places[0]))
    sampler._all_grids = [*begin, *left]


def _alike(value: Any, other: Any) -> bool:
    """Return whether two values are one; numbers in steps are, but for rounding."""
    if isinstance(value, float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(value == other)


class Quiet:
    """Let Optuna's own lines of log, and its warnings of experimental parts, be silent for a while."""

    def __enter__(self) -> None:
        self._before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

    def __exit__(self, *_: object) -> None:
        self._caught.__exit__(None, None, None)
        optuna.logging.set_verbosity(self._before)
