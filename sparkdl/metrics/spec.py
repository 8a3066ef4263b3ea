"""The metrics of a validation, with their names and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import BinaryFairness, BinaryGroupStatRates
from torchmetrics.wrappers import MinMaxMetric, Running

from sparkdl.exceptions import ConfigError, SerializationError
from sparkdl.metrics import LOSS
from sparkdl.metrics.loss import Loss

_BY_WORD = {
    "accuracy": "classification.MulticlassAccuracy(num_classes=10)",
    "acc": "classification.MulticlassAccuracy(num_classes=10)",
    "auc": "classification.BinaryAUROC()",
    "auroc": "classification.BinaryAUROC()",
    "f1": "classification.MulticlassF1Score(num_classes=10)",
    "precision": "classification.MulticlassPrecision(num_classes=10)",
    "recall": "classification.MulticlassRecall(num_classes=10)",
    "mse": "regression.MeanSquaredError()",
    "rmse": "regression.MeanSquaredError(squared=False)",
    "mae": "regression.MeanAbsoluteError()",
    "r2": "regression.R2Score()",
}
"""Metrics by the words that other libraries have for them; a word does not tell the number of classes."""

AnyMetric = Metric | MetricCollection
Prepare = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric and its arguments.

    Sample weights reach the loss only: torchmetrics counts every row once.

    Args:
        metric: a metric or collection of torchmetrics, or one of :mod:`sparkdl.metrics`.
        prepare: ``prepare(output, label, inputs)`` makes a tuple of arguments of ``metric.update``, a
            dict of keyword arguments, or the only argument. By default the metric gets ``(output,
            label)``; without a label ``(output, inputs)``, as the loss does.

    Raises:
        ConfigError: if it is no metric, or ``prepare`` cannot be called.
    """

    metric: AnyMetric
    prepare: Prepare | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, Metric | MetricCollection):
            raise _no_metric(self.metric)
        if self.prepare is not None and not callable(self.prepare):
            raise ConfigError(
                f"prepare={self.prepare!r:.100}: expected a callable prepare(output, label, inputs)"
            )

    def fresh(self) -> MetricSpec:
        """Return a copy without any state."""
        metric = self.metric.clone()
        metric.reset()
        return MetricSpec(metric, self.prepare)

    def update(self, output: Any, label: Any, inputs: Any) -> None:
        """Add a batch."""
        positional, named = self.arguments(output, label, inputs)
        self.metric.update(*positional, **named)

    def arguments(self, output: Any, label: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the metric gets of a batch: positional arguments, and those by name."""
        if self.prepare is None:
            return (output, inputs if label is None else label), {}
        arguments = self.prepare(output, label, inputs)
        if isinstance(arguments, dict):
            return (), arguments
        return (arguments if isinstance(arguments, tuple) else (arguments,)), {}


MetricLike = AnyMetric | MetricSpec | tuple[AnyMetric, Prepare]
Metrics = MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike]
"""One metric, several, or several by name; a tuple (metric, prepare) is short for a MetricSpec."""


def metric_specs(metrics: Metrics | None) -> dict[str, MetricSpec]:
    """Name metrics and copy them without state.

    Without names a metric is called by its class in snake case, and the scores of a collection by
    their own names, which the empty name stands for.
    """
    named = _named(metrics)
    specs = {}
    for name, value in named.items():
        spec = MetricSpec(*value) if isinstance(value, tuple) else value
        spec = spec if isinstance(spec, MetricSpec) else MetricSpec(spec)
        try:
            spec = spec.fresh()
        except Exception as error:
            raise SerializationError(f"metric {name!r} cannot be copied for the tasks: {error}") from error
        if name == LOSS and not isinstance(spec.metric, Loss):
            raise ConfigError("the metric name 'loss' is that of the run's own loss; choose another")
        if any(isinstance(part, MinMaxMetric) for part in spec.metric.modules()):
            raise ConfigError(
                f"metric {name!r} remembers the least and greatest value of earlier validations, but each "
                "has a metric of its own here; use the metric inside it, and look at history.validations"
            )
        for _, leaf in leaves(spec.metric):
            if isinstance(leaf, Running):
                raise ConfigError(
                    f"metric {name!r} has a running window, which depends on the order of all batches and "
                    "has no meaning over partitions; use the metric inside it"
                )
            if isinstance(leaf, BinaryFairness | BinaryGroupStatRates):
                raise ConfigError(
                    f"metric {name!r} ({type(leaf).__name__}) numbers the groups of a batch: where one "
                    "is missing, it counts the next one's rows as its own. Take a metric for each group, "
                    "with prepare= that chooses its rows"
                )
        specs[name] = spec
    return specs


def _named(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        for name in metrics:
            if not isinstance(name, str) or (not name and not isinstance(metrics[name], MetricSpec)):
                raise ConfigError(f"metrics: {name!r} is not a name; expected a non-empty string")
        return dict(metrics)
    # A word is a sequence, too, and so is a tuple (metric, prepare).
    several = isinstance(metrics, Sequence) and not isinstance(metrics, str | bytes) and not _is_pair(metrics)
    named: dict[str, Any] = {}
    for value in metrics if several else [metrics]:
        if not isinstance(value, Metric | MetricCollection | MetricSpec) and not _is_pair(value):
            raise _no_metric(value)
        metric = value[0] if _is_pair(value) else getattr(value, "metric", None)
        metric = metric if isinstance(metric, Metric | MetricCollection) else value
        name = "" if isinstance(metric, MetricCollection) else _snake_case(type(metric).__name__)
        if name in named:
            raise ConfigError(
                f"metrics: two are called {name or 'MetricCollection'!r}; name them with a dict, "
                f"for example metrics={{'first': ..., 'second': ...}}"
            )
        named[name] = value
    return named


def _no_metric(found: Any) -> ConfigError:
    """Return the error that something is no metric, with a metric of that name if there is one."""
    word = found.__name__ if isinstance(found, type) else found
    known = _BY_WORD.get(word.lower().replace("-", "_")) if isinstance(word, str) else None
    if isinstance(found, type) and issubclass(found, Metric | MetricCollection):
        said, remedy = f"metric {found.__name__} is a class", f"make one: {found.__name__}(...)"
    else:
        said = f"metric {found!r:.100}: expected a torchmetrics.Metric or MetricCollection"
        remedy = f"for example torchmetrics.{known or 'classification.MulticlassAccuracy(num_classes=10)'}"
    return ConfigError(f"{said}; {remedy}")


def _is_pair(value: Any) -> bool:
    """Whether a tuple is (metric, prepare) and not two metrics, which are callable as well."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], Metric | MetricCollection)
        and callable(value[1])
        and not isinstance(value[1], Metric | MetricCollection)
    )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def leaves(metric: AnyMetric) -> Iterator[tuple[str, Metric]]:
    """Iterate over the metrics with states inside a metric, by path: wrappers and sums have several."""
    for path, module in metric.named_modules():
        if isinstance(module, Metric) and module.metric_state:
            yield path, module


def higher_is_better(specs: Mapping[str, MetricSpec], score: str) -> bool | None:
    """Return whether larger values of a score are better; ``None`` if the metric does not say."""
    if score == LOSS:
        return False
    for name, spec in specs.items():
        if name and score != name and not score.startswith(f"{name}/"):
            continue
        metric: Any = spec.metric
        if isinstance(metric, MetricCollection):
            inside = score.removeprefix(f"{name}/") if name else score
            members = metric.items(copy_state=False)
            found = [m for key, m in members if inside == key or inside.startswith(f"{key}/")]
            if not found:
                continue
            metric = found[0]
        opinions = {m.higher_is_better for m in metric.modules() if isinstance(m, Metric)}
        opinions.discard(None)
        return opinions.pop() if len(opinions) == 1 else None
    return None


def scores(name: str, metric: AnyMetric) -> dict[str, float]:
    """Compute a metric and return one score under its name, or several, under their own if it is empty.

    They are ``name/key`` for dicts, ``name/0`` for vectors and tuples. ConfigError if one is no number.
    """
    return dict(_flatten(name, metric.compute(), name))


def _flatten(path: str, value: Any, metric: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(f"{path}/{key}" if path else str(key), item, metric)
    elif isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.ndim):
        for index, item in enumerate(value):
            yield from _flatten(f"{path}/{index}" if path else str(index), item, metric)
    elif isinstance(value, Tensor) and not value.is_complex():
        yield path, float(value.item())
    elif isinstance(value, int | float):
        yield path, float(value)
    else:
        raise ConfigError(
            f"metric {metric!r}: compute() returned a {type(value).__name__}; expected numbers, or a dict, "
            "tuple or tensor of them"
        )
