"""Validation sets of a run, and the score that is monitored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Validation
from sparkdl.exceptions import ConfigError
from sparkdl.metrics import LOSS
from sparkdl.train.history import RESERVED
from sparkdl.train.options.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Monitor:
    """The score that triggers, schedules and early stopping look at."""

    set: str  # name of the validation set
    score: str  # name of the score
    higher_is_better: bool  # whether larger values are better
    min_delta: float  # how much better than the best a value must be to count as better


def validation_sets(validation: Validation) -> dict[str, Dataset]:
    """Name the validation sets."""
    given: object = validation
    if given is not None and not isinstance(given, Dataset | Mapping):
        raise ConfigError(
            f"validation: found a {type(given).__module__}.{type(given).__name__}, expected a sparkdl "
            "Dataset, or a dict from names to Datasets"
        )
    sets = {"val": validation} if isinstance(validation, Dataset) else dict(validation or {})
    for name, data in sets.items():
        if not isinstance(data, Dataset):
            raise ConfigError(f"validation: {name!r} is {data!r:.100}; expected a sparkdl Dataset")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"validation: {name!r} cannot name a set; use a word without '/'")
    return sets


def check_validation(config: TrainConfig, shipped: bytes, sets: Mapping[str, Dataset]) -> Monitor | None:
    """Try the metrics on every set's first rows and choose the monitored score.

    By default that is the first score after the loss, on the first set, and the loss without metrics.

    Without validation it is ``None``. Raises ConfigError if ``monitor`` names no score, or it is unknown
    which of its values are better; ModelError if a metric fails on a set's rows.
    """
    if not sets:
        if config.monitor is not None:
            raise ConfigError(
                f"monitor={config.monitor!r} needs validation scores: give fit(data, validation=...)"
            )
        if config.end_when.needs_score:
            raise ConfigError(
                f"end_when={config.end_when!r} needs validation scores: without fit(data, validation=...) "
                "the run would never end"
            )
        return None
    from sparkdl.metrics.spec import higher_is_better  # with torchmetrics, which only validation needs
    from sparkdl.train.passes.evaluate import check_metrics, with_loss

    found = {name: check_metrics(shipped, data, config.metrics) for name, data in sets.items()}
    scores = {name: [*names.measured, *names.logged] for name, names in found.items()}
    taken = set(RESERVED) & {s for names in scores.values() for s in names}
    if taken:
        raise ConfigError(f"metrics: {', '.join(sorted(taken))} cannot name a metric; use another word")
    first = next(iter(sets))
    if config.monitor is None:
        name, score = first, next((s for s in found[first].measured if s != LOSS), LOSS)
    else:
        name, _, score = config.monitor.partition("/")
        if name not in sets or not score:  # a score's own name may have a slash in it, a set's may not
            name, score = first, config.monitor
            for other in sets:  # Lightning's users write val_loss
                plain = config.monitor.removeprefix(f"{other}_")
                if config.monitor not in scores[first] and plain in scores[other]:
                    name, score = other, plain
                    break
    if not scores[name]:
        raise ConfigError(
            f"validation: there is no score to monitor on {name!r}: its rows lack the label that the loss "
            "needs, and there are no metrics"
        )
    if not any(score == s or score.startswith(f"{s}/") for s in scores[name]):
        known = ", ".join(f"{set_name}/{s}" for set_name, names in scores.items() for s in names)
        raise ConfigError(f"monitor={config.monitor!r}: there is no such score; expected one of {known}")
    known_better = higher_is_better(with_loss(config.metrics), score)
    if score in found[name].logged and score.endswith(LOSS):  # val_loss, as Lightning's users write
        known_better = False
    better = {"max": True, "min": False}.get(config.monitor_mode or "", known_better)
    if better is None:
        raise ConfigError(
            f"monitor={score!r}: the metric does not say whether larger values are better; "
            "set monitor_mode to 'max' or 'min'"
        )
    return Monitor(name, score, better, config.min_delta)
