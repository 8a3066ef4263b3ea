"""The space of a search: which values each hyper-parameter may have.

The functions make Optuna's distributions, under the names that users of Ray Tune know; a distribution of
Optuna's own may stand in a space as well, and so may a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from sparkdl.exceptions import ConfigError
from sparkdl.saved.digest import label_of, stable_digest

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
    """Return one of some values: numbers, strings, booleans or ``None``.

    Raises:
        ConfigError: if there are none, one is something else, or two are equal and of different types.
    """
    for value in values:
        if not isinstance(value, _CHOICES):
            raise ConfigError(
                f"choice: {value!r:.100} is a {type(value).__name__}; expected numbers, strings, booleans or "
                "None: choose by a name, and look the object up in the function that makes the Trainer"
            )
    if not values:
        raise ConfigError("choice([]): expected at least one value")
    for place, value in enumerate(values):
        first = values[list(values).index(value)] if value == value else value
        if type(first) is not type(value):
            raise ConfigError(
                f"choice: value {place}, {value!r:.100}, is equal to {first!r:.100}, so the second would "
                "never be chosen; give a list instead of tune.choice([...]), or other values"
            )
    return CategoricalDistribution(tuple(values))


class Space:
    """What may be chosen, and what is fixed.

    ``given`` has by name a distribution, a list of values, or a constant. Values of a list may be anything;
    they are chosen by position. If some are no numbers, strings, booleans or ``None``, params of trials have
    a short text for each, with its position where texts are alike.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"space={given!r:.100}: expected a dict such as {{'lr': tune.loguniform(1e-4, 1e-1)}}"
            )
        self.distributions: dict[str, BaseDistribution] = {}
        self.constants: dict[str, Any] = {}
        self._objects: dict[str, list[tuple[str, Any]]] = {}
        for name, value in given.items():
            if not isinstance(name, str):
                raise ConfigError(f"space: the name {name!r:.100} is no string")
            if isinstance(value, BaseDistribution):
                self.distributions[name] = value
            elif isinstance(value, list):
                self.distributions[name] = choice(self._plain(name, value))
            elif inner := _distributions_in(value, name):
                raise ConfigError(
                    f"space: {inner[0]} is chosen within {name!r}, where no search looks; give it a name of "
                    f"its own, such as {{{inner[0]!r}: ...}}, and put it in its place in make"
                )
            else:
                self.constants[name] = value
        if not self.distributions:
            raise ConfigError(
                "space: nothing is left to choose; give at least one name a distribution such as "
                "tune.loguniform(1e-4, 1e-1) or tune.choice([16, 64])"
            )

    @property
    def logarithmic(self) -> tuple[str, ...]:
        """The names whose logarithms are told apart."""
        return tuple(name for name, kind in self.distributions.items() if getattr(kind, "log", False))

    def _plain(self, name: str, values: list[Any]) -> list[Any]:
        """Return values by which Optuna chooses from a list: texts of which no two are alike, for objects."""
        plain = [value for value in values if isinstance(value, _CHOICES)]
        alike = any(a == b and type(a) is not type(b) for a, b in combinations(plain, 2))
        if len(plain) == len(values) and not alike:
            return values
        labels = [label_of(value) for value in values]
        labels = [f"{t} #{n}" if labels.count(t) > 1 else t for n, t in enumerate(labels)]
        self._objects[name] = list(zip(labels, values, strict=True))
        return labels

    def chosen(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return params with the values of lists as they were given."""
        return {name: self._given(name, value) for name, value in params.items()}

    def _given(self, name: str, value: Any) -> Any:
        found = [
            own for label, own in self._objects.get(name, ()) if isinstance(value, str) and label == value
        ]
        return found[0] if found else value

    def _label(self, name: str, value: Any) -> Any:
        """Return by which text a value is chosen; the value where there is none."""
        known = self._objects.get(name, [])
        found = [label for label, own in known if own is value]
        if not found and (digest := stable_digest(value)) is not None:
            found = [label for label, own in known if stable_digest(own) == digest]
        return found[0] if found else value

    def named(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return given params as samplers have them."""
        found = {}
        for name, value in params.items():
            if name not in self.distributions:
                raise ConfigError(
                    f"first: {name!r:.100} is not to be chosen; the space has {', '.join(self.distributions)}"
                )
            chosen = self._label(name, value)
            if not _holds(self.distributions[name], chosen):
                raise ConfigError(f"first: {name}={value!r:.100} is not in {self.distributions[name]!r:.300}")
            kind = self.distributions[name]  # randint makes 8 of 8.0, as for values that are drawn
            found[name] = kind.to_external_repr(kind.to_internal_repr(chosen))
        return found

    def grid(self) -> dict[str, list[Any]]:
        """Return all values of each name; raises ConfigError if a name has any number of them."""
        found: dict[str, list[Any]] = {}
        for name, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                found[name] = list(distribution.choices)
            elif isinstance(distribution, IntDistribution) and not distribution.log:
                found[name] = list(range(distribution.low, distribution.high + 1, distribution.step))
            elif isinstance(distribution, FloatDistribution) and distribution.step is not None:
                # In floating point, 0.1 + 2 * 0.1 is above 0.3.
                bounds = (distribution.low, distribution.high, distribution.step)
                low, high, step = (Decimal(str(value)) for value in bounds)
                found[name] = [float(low + n * step) for n in range(int((high - low) / step) + 1)]
            else:
                raise ConfigError(
                    f"search='grid': {name!r} is {distribution}, which has no finite list of values; give "
                    "tune.choice([...]), tune.randint(...) or tune.quniform(...)"
                )
        return found

    def describe(self) -> dict[str, Any]:
        """Return, JSON-compatible, what tells two spaces apart.

        By name it is the distribution as Optuna writes it; for a list of objects, or a constant, text and
        digest of each. Where the digest is ``None``, the value is compared by position alone.
        """
        return {
            **{name: distribution_to_json(kind) for name, kind in self.distributions.items()},
            **{name: [[label, stable_digest(own)] for label, own in v] for name, v in self._objects.items()},
            **{name: [label_of(value), stable_digest(value)] for name, value in self.constants.items()},
        }

    def describe_before(self) -> dict[str, Any]:
        """Return what earlier releases wrote: texts alone, and ``None`` for what texts do not tell apart."""
        plain = {n: repr(v)[:200] if isinstance(v, _CHOICES) else None for n, v in self.constants.items()}
        kinds = {name: distribution_to_json(kind) for name, kind in self.distributions.items()}
        return {**kinds, **plain, **dict.fromkeys(self._objects)}


def _distributions_in(value: Any, path: str) -> list[str]:
    """Return the paths of distributions within a constant."""
    if isinstance(value, BaseDistribution):
        return [path]
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple):
        items = enumerate(value)
    return [found for key, part in items for found in _distributions_in(part, f"{path}.{key}")]


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(value, str) and not isinstance(distribution, CategoricalDistribution):
        return False
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (TypeError, ValueError):
        return False
