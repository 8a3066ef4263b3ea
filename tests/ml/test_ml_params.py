"""Every Param of every estimator and model, by reflection."""

import inspect
import json
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression, MultilayerPerceptronClassifier
from pyspark.ml.param import Param
from pyspark.ml.tuning import ParamGridBuilder
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.ml import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchModel,
    TorchRegressionModel,
    TorchRegressor,
)
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.ml.params.converters import json_value
from sparkdl.ml.params.entries import describe, entries
from sparkdl.ml.params.keywords import ClassifierKeywords, EstimatorKeywords, RegressorKeywords
from sparkdl.train.hooks.callbacks import EarlyStopping

ESTIMATORS = [TorchEstimator, TorchClassifier, TorchRegressor]
MODELS = [TorchModel, TorchClassificationModel, TorchRegressionModel]

SCORING = {"onError", "errorCol"}  # of models alone: they say what becomes of rows

# A value that differs from the default, for each Param there is.
VALUES = {
    "batchSize": 7,
    "checkpointPath": "/tmp/checkpoints",
    "earlyStoppingPatience": 3,
    "encode": "on",
    "errorCol": "why",
    "featuresCol": "x",
    "featuresCols": ["a", "b"],
    "gradientClipNorm": 0.5,
    "handleInvalid": "skip",
    "inferenceBatchSize": 11,
    "maxBatchTokens": 500,
    "inputNames": ["user", "item"],
    "inputShapes": [[2, 3], None],
    "inputTypes": ["int64", None],
    "labelCol": "y",
    "labelCols": ["y", "z"],
    "learningRate": 0.25,
    "maxCategories": 77,
    "maxEpochs": 4,
    "maxIter": 9,
    "microBatchSize": 5,
    "minFrequency": 3,
    "monitor": "val/accuracy",
    "numPartitions": 6,
    "onError": "column",
    "outputCols": ["p", "q"],
    "parquetPath": "/data/table",
    "quantize": True,
    "precision": "bf16",
    "codec": "fp16",
    "transport": "direct",
    "predictedLabelCol": "word",
    "predictionCol": "p",
    "probabilityCol": "pr",
    "rawPredictionCol": "raw",
    "resume": True,
    "seed": 12,
    "shuffle": False,
    "standardization": False,
    "thresholds": [0.2, 0.8],
    "validationFraction": 0.2,
    "validationIndicatorCol": "v",
    "verbose": True,
    "warmStartFrom": "runs/yesterday",
    "weightCol": "w",
}


def every_param(classes):
    return [
        pytest.param(cls, param.name, id=f"{cls.__name__}-{param.name}")
        for cls in classes
        for param in cls().params
    ]


def accessor(kind, name):
    return kind + name[0].upper() + name[1:]


@pytest.mark.parametrize(("cls", "name"), every_param(ESTIMATORS + MODELS))
def test_set_get_copy_explain(cls, name):
    stage, value = cls(), VALUES[name]
    param = stage.getParam(name)
    assert param.doc
    before = stage.explainParam(param)
    assert ("(default: " in before) == stage.hasDefault(param)
    assert not stage.isSet(param)

    setter = getattr(stage, accessor("set", name), None)
    if setter is None:
        assert cls in MODELS  # models tell how they were trained, but cannot be told
        stage.set(param, value)
    else:
        assert setter(value) is stage
    assert getattr(stage, accessor("get", name))() == value
    assert stage.getOrDefault(name) == value
    assert f"current: {value}" in stage.explainParam(name)
    assert stage.extractParamMap()[param] == value
    assert json.loads(json.dumps(value)) == value

    copied = stage.copy()
    assert copied.uid == stage.uid
    assert copied.getOrDefault(name) == value
    copied.clear(copied.getParam(name))
    assert stage.getOrDefault(name) == value, "the copy has values of its own"

    other = cls()
    assert other.copy({other.getParam(name): value}).getOrDefault(name) == value
    assert not other.isSet(name)


@pytest.mark.parametrize(("cls", "name"), every_param(ESTIMATORS))
def test_constructor_takes_every_param(cls, name):
    assert cls(**{name: VALUES[name]}).getOrDefault(name) == VALUES[name]
    assert cls().setParams(**{name: VALUES[name]}).getOrDefault(name) == VALUES[name]


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_signature_tells_the_defaults(cls):
    stage = cls()
    signature = inspect.signature(cls)
    assert set(signature.parameters) == {p.name for p in stage.params} | set(ATTRIBUTES)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values())
    for param in stage.params:
        default = stage.getOrDefault(param) if stage.hasDefault(param) else None
        assert signature.parameters[param.name].default == default, param.name


# -- the table -----------------------------------------------------------------------------------------

COMMON = {
    "module": None,
    "loss": None,
    "optimizer": None,
    "schedule": None,
    "metrics": None,
    "hooks": (),
    "groups": (),
    "clip": None,
    "options": None,
    "featuresCol": "features",
    "featuresCols": None,
    "inputNames": None,
    "inputShapes": None,
    "inputTypes": None,
    "handleInvalid": "error",
    "encode": "auto",
    "maxCategories": 10_000,
    "minFrequency": None,
    "labelCol": "label",
    "weightCol": None,
    "predictionCol": "prediction",
    "learningRate": 2e-3,
    "batchSize": 32,
    "maxEpochs": 20,
    "maxIter": None,
    "seed": 0,
    "shuffle": True,
    "numPartitions": None,
    "microBatchSize": None,
    "precision": "fp32",
    "codec": "fp32",
    "transport": "auto",
    "gradientClipNorm": None,
    "validationFraction": 0.0,
    "validationIndicatorCol": None,
    "parquetPath": None,
    "monitor": None,
    "earlyStoppingPatience": None,
    "checkpointPath": None,
    "resume": False,
    "warmStartFrom": None,
    "inferenceBatchSize": None,
    "maxBatchTokens": None,
    "quantize": False,
    "verbose": False,
}
CLASSES = {
    "probabilityCol": "probability",
    "rawPredictionCol": "rawPrediction",
    "thresholds": None,
    "predictedLabelCol": "predictedLabel",
}
TAKEN = {
    TorchEstimator: {**COMMON, "learningRate": 1e-3, "labelCols": None, "outputCols": None},
    TorchClassifier: {**COMMON, **CLASSES, "standardization": True},
    TorchRegressor: {**COMMON, "standardization": True},
}
KEYWORDS = {
    TorchEstimator: EstimatorKeywords,
    TorchClassifier: ClassifierKeywords,
    TorchRegressor: RegressorKeywords,
}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_each_estimator_takes_what_it_has_always_taken(cls):
    assert {name: p.default for name, p in inspect.signature(cls).parameters.items()} == TAKEN[cls]


@pytest.mark.parametrize("cls", ESTIMATORS + MODELS)
def test_every_param_is_a_line_of_the_table(cls):
    stage, table = cls(), entries(cls)
    assert {param.name for param in stage.params} == set(table)
    for name, entry in table.items():
        assert stage.getParam(name).doc == entry.doc == getattr(cls, name).doc
        assert stage.hasDefault(name) == (entry.default is not None)
        assert entry.default is None or stage.getOrDefault(name) == entry.default
        for verb, says in (("get", "Gets the value of"), ("set", "Sets the value of")):
            method = getattr(cls, accessor(verb, name), None)
            assert method is None or (says in method.__doc__ and name in method.__doc__)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_keywords_name_what_the_table_has(cls):
    hints = get_type_hints(KEYWORDS[cls])
    assert set(hints) == set(entries(cls)) | set(ATTRIBUTES)
    for constructor in (cls.__init__.__wrapped__, cls.setParams):
        (taken,) = (p for p in inspect.signature(constructor).parameters.values() if p.name != "self")
        assert taken.annotation == f"Unpack[{KEYWORDS[cls].__name__}]"
    for name, entry in entries(cls).items():
        allowed = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        assert (NoneType in allowed) == (entry.default is None), name
        kinds = tuple(get_origin(kind) or kind for kind in allowed)
        for value in (VALUES[name], cls(**{name: VALUES[name]}).getOrDefault(name)):
            assert isinstance(value, kinds), name


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_help_has_the_table(cls):
    for entry in entries(cls).values():
        assert describe(entry) in cls.__doc__
        assert entry.doc.removesuffix(".") in describe(entry)
    assert "maxEpochs: maximum number of passes over the rows (>= 0) (default: 20)." in cls.__doc__


def test_the_guide_names_params_that_there_are():
    guide = (Path(__file__).parents[2] / "docs" / "ml.md").read_text()
    tables = re.findall(r"^\| Param \|.*\n\|[-|]+\n((?:\|.*\n)+)", guide, re.MULTILINE)
    named = {
        name
        for table in tables
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert len(named) > 20
    assert named <= {name for cls in ESTIMATORS for name in entries(cls)} | SCORING


def test_a_subclass_takes_what_it_says():
    class Own(TorchClassifier):
        def __init__(self, width=3):
            super().__init__(batchSize=width)

    assert list(inspect.signature(Own).parameters) == ["width"]
    assert Own(5).getBatchSize() == 5
    assert Own().getLearningRate() == TorchClassifier().getLearningRate() == 2e-3


def test_values_cover_nothing_else():
    names = {param.name for cls in ESTIMATORS + MODELS for param in cls().params}
    assert names == set(VALUES)


@pytest.mark.parametrize(("estimator", "model"), list(zip(ESTIMATORS, MODELS, strict=True)))
def test_models_have_the_params_of_their_estimators(estimator, model):
    only = {"standardization"}
    assert {p.name for p in estimator().params} - only == {p.name for p in model().params} - SCORING


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_save_and_load(cls, spark, tmp_path):
    stage = cls(**{p.name: VALUES[p.name] for p in cls().params})
    stage.setHyper(hidden=[8, 4]).setHyper("optimizer", weight_decay=0.1)
    stage.save(str(tmp_path / "stage"))
    loaded = cls.load(str(tmp_path / "stage"))
    assert loaded.uid == stage.uid
    assert loaded.extractParamMap() == stage.extractParamMap()
    assert loaded.getHyper() == {"hidden": [8, 4]}
    assert loaded.getHyper("optimizer") == {"weight_decay": 0.1}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_save_and_load_defaults(cls, spark, tmp_path):
    stage = cls()
    stage.save(str(tmp_path / "stage"))
    loaded = cls.load(str(tmp_path / "stage"))
    assert not any(loaded.isSet(param) for param in loaded.params)
    assert loaded.extractParamMap() == stage.extractParamMap()


@pytest.mark.parametrize("cls", MODELS)
def test_save_and_load_models(cls, spark, tmp_path):
    model = cls(nn.Linear(2, 1))
    model._set(**{p.name: VALUES[p.name] for p in model.params})
    model.write().option("pickle", "true").save(str(tmp_path / "model"))
    loaded = cls.read().option("pickle", "true").load(str(tmp_path / "model"))
    assert loaded.uid == model.uid
    assert loaded.extractParamMap() == model.extractParamMap()


# -- wrong values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batchSize", "many"),
        ("batchSize", 1.5),
        ("learningRate", "fast"),
        ("featuresCols", "a"),
        ("shuffle", 1),
        ("inputShapes", "3x3"),
        ("precision", 16),
        ("codec", 16),
    ],
)
def test_a_wrong_type_is_a_type_error_as_in_spark(name, value):
    with pytest.raises(TypeError, match=f'Invalid param value given for param "{name}"'):
        TorchEstimator(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batchSize", 0),
        ("maxEpochs", -1),
        ("maxIter", -1),
        ("learningRate", 0.0),
        ("learningRate", float("nan")),
        ("gradientClipNorm", -1.0),
        ("validationFraction", 1.0),
        ("earlyStoppingPatience", 0),
        ("numPartitions", 0),
        ("microBatchSize", 0),
        ("inferenceBatchSize", 0),
        ("maxBatchTokens", 0),
        ("precision", "fp8"),
        ("precision", "fp16"),
        ("codec", "int1"),
        ("transport", "pigeons"),
        ("handleInvalid", "ignore"),
        ("featuresCols", []),
        ("featuresCols", ["a", "a"]),
        ("inputShapes", [[0]]),
        ("inputTypes", ["text"]),
    ],
)
def test_a_value_that_cannot_work_is_named(name, value):
    with pytest.raises(ConfigError, match=f"^{name}="):
        TorchEstimator(**{name: value})
    est = TorchEstimator()
    with pytest.raises(ValueError, match=name):
        est.set(est.getParam(name), value)


def test_numpy_numbers_and_short_forms_are_converted():
    est = TorchEstimator(
        batchSize=np.int64(8),
        learningRate=1,
        inputShapes=(3, 32, 32),
        inputTypes="uint8",
        featuresCols=("a",),
    )
    assert est.getBatchSize() == 8
    assert type(est.getLearningRate()) is float
    assert est.getInputShapes() == [[3, 32, 32]]
    assert est.getInputTypes() == ["uint8"]
    assert est.getFeaturesCols() == ["a"]


def test_keywords_only_and_known_ones_only():
    with pytest.raises(TypeError, match="forces keyword arguments"):
        TorchClassifier("x")
    with pytest.raises(TypeError, match="batch_size"):
        TorchClassifier(batch_size=3)
    with pytest.raises(TypeError, match="TorchClassifier has no parameter 'batch_size'"):
        TorchClassifier().setParams(batch_size=3)


def test_step_size_is_another_name_of_the_learning_rate():
    est = TorchClassifier().setStepSize(0.5)
    assert est.getLearningRate() == est.getStepSize() == 0.5


# -- side by side with Spark's own ---------------------------------------------------------------------


@pytest.mark.parametrize("spark_cls", [LogisticRegression, MultilayerPerceptronClassifier])
def test_shared_params_have_the_defaults_of_spark(spark, spark_cls):
    ours, theirs = TorchClassifier(), spark_cls()
    chosen = {"seed", "maxIter"}  # ours are the same in every process; iterations are mini-batches
    shared = {p.name for p in theirs.params} & {p.name for p in ours.params} - chosen
    assert {"featuresCol", "labelCol", "predictionCol", "probabilityCol", "rawPredictionCol"} <= shared
    for name in shared:
        assert ours.hasDefault(name) == theirs.hasDefault(name), name
        if ours.hasDefault(name):
            assert ours.getOrDefault(name) == theirs.getOrDefault(name), name


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Spark 3.5's, half-made
def test_uid_copy_and_errors_are_those_of_spark(spark):
    for cls in (TorchClassifier, LogisticRegression):
        stage = cls(predictionCol="p")
        assert stage.uid.startswith(cls.__name__ + "_")
        assert len(stage.uid) == len(cls.__name__) + 13
        assert cls().uid != stage.uid
        assert stage.copy().uid == stage.uid
        assert stage.copy({stage.predictionCol: "q"}).getPredictionCol() == "q"
        assert stage.extractParamMap({stage.labelCol: "y"})[stage.labelCol] == "y"
        with pytest.raises(KeyError):
            stage.getWeightCol()
        with pytest.raises(AttributeError):
            stage.getParam("nothing")
        with pytest.raises(TypeError, match="maxIter"):
            stage.setMaxIter("x")
        with pytest.raises(ValueError, match="does not belong"):
            stage.set(cls().maxIter, 3)
        with pytest.raises(TypeError, match="forces keyword arguments"):
            cls("features")
        assert not stage.hasParam("module")


# -- hyper-parameters ------------------------------------------------------------------------------


def test_hyper_parameters_are_params():
    est = TorchClassifier()
    hidden = est.hyper("hidden")
    assert isinstance(hidden, Param)
    assert hidden is est.hyper("hidden")
    assert hidden in est.params
    assert est.hasParam("module.hidden")
    assert est.getParam("module.hidden") is hidden
    assert "undefined" in est.explainParam(hidden)
    assert est.getHyper() == {}

    est.set(hidden, (np.int64(8), 4))
    assert est.getHyper() == {"hidden": [8, 4]}
    assert est.copy().getHyper() == {"hidden": [8, 4]}
    assert est.copy({hidden: [2]}).getHyper() == {"hidden": [2]}
    assert est.getHyper() == {"hidden": [8, 4]}
    assert est.extractParamMap()[hidden] == [8, 4]
    est.clear(hidden)
    assert est.getHyper() == {}


def test_hyper_parameters_of_the_optimizer():
    est = TorchClassifier().setHyper("optimizer", weight_decay=0.1, betas=(0.8, 0.9)).setHyper(hidden=[3])
    assert est.getHyper("optimizer") == {"weight_decay": 0.1, "betas": [0.8, 0.9]}
    assert est.getHyper() == {"hidden": [3]}


def test_hyper_parameters_reach_copies_that_were_made_before():
    est = TorchClassifier()
    early = est.copy()
    assert early.copy({est.hyper("hidden"): [5]}).getHyper() == {"hidden": [5]}


def test_hyper_parameters_in_grids_of_pipelines():
    est = TorchClassifier()
    grid = ParamGridBuilder().addGrid(est.hyper("hidden"), [[4], [8]]).addGrid(est.batchSize, [1, 2]).build()
    assert len(grid) == 4
    pipeline = Pipeline(stages=[est])
    found = [pipeline.copy(values).getStages()[0] for values in grid]
    assert {(tuple(e.getHyper()["hidden"]), e.getBatchSize()) for e in found} == {
        ((h,), b) for h in (4, 8) for b in (1, 2)
    }


def test_hyper_parameters_follow_the_uid():
    est = TorchClassifier().setHyper(hidden=[3])
    est._resetUid("other")
    assert est.getHyper() == {"hidden": [3]}
    assert est.hyper("hidden").parent == "other"


@pytest.mark.parametrize(("name", "of"), [("hidden", "loss"), ("not a name", "module"), (3, "module")])
def test_hyper_names_an_argument(name, of):
    with pytest.raises(ConfigError, match="expected the name of a keyword argument"):
        TorchClassifier().hyper(name, of=of)


def test_hyper_values_are_json():
    with pytest.raises(TypeError, match=r'param "module.act".*JSON'):
        TorchClassifier().setHyper(act=nn.ReLU)
    assert json_value({"a": np.float32(0.5), "b": [np.arange(2), None, True]}) == {
        "a": 0.5,
        "b": [[0, 1], None, True],
    }


# -- attributes ------------------------------------------------------------------------------------


def test_attributes_have_setters_and_are_shared_by_copies():
    module, loss = nn.Linear(2, 1), nn.MSELoss()
    est = TorchEstimator(module=module).setLoss(loss).setOptions({"num_shards": 1}).setMetrics(None)
    est.setSchedule(None).setGroups([]).setClip(None).setOptimizer(None).setModule(module)
    copied = est.copy()
    assert copied.module is module
    assert copied.loss is loss
    assert copied.options == {"num_shards": 1}


def test_hooks_are_copied_for_they_remember_a_run():
    hook = EarlyStopping(2)
    est = TorchEstimator(hooks=[hook])
    (copied,) = est.copy().hooks
    assert copied is not hook
    assert copied.patience == 2
    assert est.hooks == [hook]


def test_hooks_that_cannot_be_copied_are_named():
    hook = EarlyStopping(2)
    hook.stream = (number for number in range(3))
    with pytest.raises(ConfigError, match="hooks: they cannot be copied"):
        TorchEstimator(hooks=[hook]).copy()
