"""The space of a search: which values each hyper-parameter may have.

The functions make Optuna's distributions, under the names that users of Ray Tune know; a distribution of
Optuna's own may stand in a space as well, and so may a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from sparkdl.exceptions import ConfigError

_CHOICES = (type(None), bool, int, float, str)


def uniform(low: float, high: float) -> FloatDistribution:
    """Return numbers from ``low`` to ``high``, all alike."""
    return FloatDistribution(low, high)


def loguniform(low: float, high: float) -> FloatDistribution:
    """Return numbers from ``low`` to ``high`` whose logarithms are all alike."""
    return FloatDistribution(low, high, log=True)


def quniform(low: float, high: float, step: float) -> FloatDistribution:
    """Return numbers from ``low`` to ``high`` in steps."""
    return FloatDistribution(low, high, step=step)


def randint(low: int, high: int, *, step: int = 1) -> IntDistribution:
    """Return integers from ``low`` to ``high``, both included."""
    return IntDistribution(low, high, step=step)


def lograndint(low: int, high: int) -> IntDistribution:
    """Return integers from ``low`` to ``high``, both included, whose logarithms are all alike."""
    return IntDistribution(low, high, log=True)


def choice(values: Sequence[Any]) -> CategoricalDistribution:
    """Return one of some values: numbers, strings, booleans or ``None``."""
    for value in values:
        if not isinstance(value, _CHOICES):
            raise ConfigError(
                f"choice: {value!r:.100} is a {type(value).__name__}; expected numbers, strings, booleans or "
                "None: choose by a name, and look the object up in the function that makes the Trainer"
            )
    if not values:
        raise ConfigError("choice([]): expected at least one value")
    return CategoricalDistribution(tuple(values))


class Space:
    """What may be chosen, and what is fixed.

    Args:
        given: by name a distribution, a list of values, or a constant. The values of a list may be anything;
            those that are no numbers, strings, booleans or ``None`` go by their ``repr`` in params of trials.

    Attributes:
        distributions: what may be chosen, by name.
        constants: what is fixed.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"space={given!r:.100}: expected a dict such as {{'lr': tune.loguniform(1e-4, 1e-1)}}"
            )
        self.distributions: dict[str, BaseDistribution] = {}
        self.constants: dict[str, Any] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            if not isinstance(name, str):
                raise ConfigError(f"space: the name {name!r:.100} is no string")
            if isinstance(value, BaseDistribution):
                self.distributions[name] = value
            elif isinstance(value, list):
                self.distributions[name] = choice(self._plain(name, value))
            else:
                self.constants[name] = value
        if not self.distributions:
            raise ConfigError(
                "space: nothing is left to choose; give at least one name a distribution such as "
                "tune.loguniform(1e-4, 1e-1) or tune.choice([16, 64])"
            )

    def _plain(self, name: str, values: list[Any]) -> list[Any]:
        """Return values by which Optuna chooses from a list."""
        if all(isinstance(value, _CHOICES) for value in values):
            return values
        self._objects[name] = {repr(value): value for value in values}
        return list(self._objects[name])

    def chosen(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return params with the values of lists as they were given."""
        return {
            name: self._objects[name][value] if name in self._objects else value
            for name, value in params.items()
        }

    def named(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return given params as samplers have them.

        Raises:
            ConfigError: if a name has no values to choose from, or not this one.
        """
        found = {}
        for name, value in params.items():
            if name not in self.distributions:
                raise ConfigError(
                    f"first: {name!r:.100} is not to be chosen; the space has {', '.join(self.distributions)}"
                )
            chosen = repr(value) if name in self._objects else value
            if not _holds(self.distributions[name], chosen):
                raise ConfigError(f"first: {name}={value!r:.100} is not in {self.distributions[name]!r:.300}")
            found[name] = chosen
        return found

    def grid(self) -> dict[str, list[Any]]:
        """Return all values of each name.

        Raises:
            ConfigError: if a name has any number of them.
        """
        found: dict[str, list[Any]] = {}
        for name, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                found[name] = list(distribution.choices)
            elif isinstance(distribution, IntDistribution) and not distribution.log:
                found[name] = list(range(distribution.low, distribution.high + 1, distribution.step))
            elif isinstance(distribution, FloatDistribution) and distribution.step is not None:
                steps = round((distribution.high - distribution.low) / distribution.step)
                found[name] = [distribution.low + n * distribution.step for n in range(steps + 1)]
            else:
                raise ConfigError(
                    f"search='grid': {name!r} is {distribution}, which has no finite list of values; give "
                    "tune.choice([...]), tune.randint(...) or tune.quniform(...)"
                )
        return found

    def describe(self) -> dict[str, Any]:
        """Return, JSON-compatible, what tells two spaces apart."""
        return {
            **{n: optuna.distributions.distribution_to_json(d) for n, d in self.distributions.items()},
            **{name: repr(value)[:200] for name, value in self.constants.items()},
        }


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (TypeError, ValueError):
        return False
