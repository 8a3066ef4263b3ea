"""A TorchTuner and its model as folders, by the conventions of Spark ML.

Beside the metadata lies the estimator, or the best model, in a folder of its own. Space, options and trials
are JSON in the metadata, with its checksum: nothing is pickled.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from pyspark.ml.util import MLReader

from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators import estimator as estimators
from sparkdl.ml.estimators import model as models
from sparkdl.ml.persistence.stored import ParamsWriter, check_class, explained, read_metadata
from sparkdl.saved.metadata import check_seal
from sparkdl.saved.moved import current_class
from sparkdl.tune.result import BestTrial, SearchResult
from sparkdl.tune.schedulers.halving import ASHA, Hyperband, SuccessiveHalving
from sparkdl.tune.schedulers.moves import Scheduler
from sparkdl.tune.schedulers.pbt import PBT
from sparkdl.tune.schedulers.stopping import FIFO, MedianStopping
from sparkdl.tune.trial import Trial

SEARCH = "search"
"""Our entry in the metadata."""

_OF_TUNER = ("metric", "numFolds", "resume")
_SCHEDULERS: dict[str, Any] = {
    kind.__name__: kind for kind in (ASHA, FIFO, Hyperband, MedianStopping, PBT, SuccessiveHalving)
}
_STAGES: dict[str, Any] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        estimators.TorchClassifier,
        estimators.TorchEstimator,
        estimators.TorchRegressor,
        models.TorchClassificationModel,
        models.TorchModel,
        models.TorchRegressionModel,
    )
}


class SearchWriter(ParamsWriter):
    """Saves a stage with another one in its folder."""

    def __init__(self, instance: Any, extra: Mapping[str, Any], name: str, stage: Any) -> None:
        super().__init__(instance, {SEARCH: dict(extra)})
        self._name, self._stage = name, stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - as Spark has it
        """Write to a folder that does not exist; the metadata last, as a mark that all is there."""
        writer = self._stage.write()
        for key, value in self.optionMap.items():
            writer.option(key, value)
        writer.save(posixpath.join(path, self._name))
        super().saveImpl(path)


def read(
    reader: MLReader[Any], cls: type, path: str, name: str
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return what was saved: the metadata, our entry in it, and the stage beside it."""
    spark, inner = reader.sparkSession, posixpath.join(path, name)
    metadata = read_metadata(spark, path)
    if metadata is not None:
        check_class(metadata, path, cls)
    stage = read_metadata(spark, inner)
    if metadata is None or stage is None:
        raise ConfigError(f"path={path!r}: nothing complete was saved there", code="config-saved")
    check_seal(metadata, path)
    kind = _STAGES.get(current_class(str(stage.get("class"))))
    if kind is None:
        raise ConfigError(
            f"path={inner!r} holds a {stage.get('class')!s:.100}; expected one of "
            f"{', '.join(found.__name__ for found in _STAGES.values())}",
            code="config-saved",
        )
    entry = metadata.get(SEARCH)
    if not isinstance(entry, dict):
        raise ConfigError(f"path={path!r} holds no search", code="config-saved")
    return metadata, entry, kind.read().load(inner)


# -- a tuner -----------------------------------------------------------------------------------------


def tuner_to_json(tuner: Any) -> dict[str, Any]:
    """Return space and options of a :class:`sparkdl.tune.TorchTuner` as JSON."""
    return {
        "space": {name: _to_json(value, f"space: {name}") for name, value in tuner.space.items()},
        **{name: getattr(tuner, name) for name in _OF_TUNER},
        "options": {name: _to_json(value, f"option {name}") for name, value in tuner.options.items()},
    }


def tuner_from_json(found: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments of a :class:`TorchTuner` but its estimator."""
    with explained(path):
        return {
            "space": {name: _from_json(value) for name, value in found["space"].items()},
            **{name: found[name] for name in _OF_TUNER},
            **{name: _from_json(value) for name, value in found["options"].items()},
        }


def _to_json(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseDistribution):
        return {"distribution": distribution_to_json(value)}
    if isinstance(value, Scheduler) and _SCHEDULERS.get(type(value).__name__) is type(value):
        options = {name: option for name, option in vars(value).items() if name[0] != "_"}
        return {"scheduler": type(value).__name__, "options": _to_json(options, what)}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"values": {name: _to_json(each, what) for name, each in value.items()}}
    if isinstance(value, list):
        return [_to_json(each, what) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(each, what) for each in value]}
    raise ConfigError(
        f"{what}={value!r:.200} cannot be saved: expected what JSON can say, a distribution, or a "
        "scheduler of sparkdl. Leave it out, and give it to the tuner that is loaded",
        code="config-saved",
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "distribution" in value:
        return json_to_distribution(value["distribution"])
    if "scheduler" in value:
        return _SCHEDULERS[value["scheduler"]](**_from_json(value["options"]))
    if "tuple" in value:
        return tuple(_from_json(value["tuple"]))
    return {name: _from_json(each) for name, each in value["values"].items()}


# -- a result ----------------------------------------------------------------------------------------


def result_to_json(result: SearchResult) -> dict[str, Any]:
    """Return a result as JSON; objects among the params become their text."""
    best = result.best
    return {
        "best": None if best is None else {name: _told(getattr(best, name)) for name in BestTrial.__slots__},
        "trials": [
            {name: _told(getattr(trial, name)) for name in Trial.__slots__ if name != "state"}
            for trial in result.trials
        ],
        **{name: getattr(result, name) for name in _PLAIN},
        "logarithmic": list(result.logarithmic),
    }


_PLAIN = ("metric", "mode", "stopped_by", "epochs", "rungs", "replayed")


def result_from_json(found: Mapping[str, Any], path: str) -> SearchResult:
    """Return a result, without the module's weights."""
    with explained(path):
        trials = []
        for each in found["trials"]:
            values = {int(epoch): value for epoch, value in each["values"].items()}
            trials.append(Trial(**{**each, "values": values}))
        best = found["best"]
        return SearchResult(
            best=None if best is None else BestTrial(**{**best, "copies": tuple(best["copies"])}),
            trials=trials,
            **{name: found[name] for name in _PLAIN},
            logarithmic=tuple(found.get("logarithmic", ())),
        )


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _told(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_told(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)[:200]
