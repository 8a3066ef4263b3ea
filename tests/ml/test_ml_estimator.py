"""Fitting: what is chosen, what is checked, and what the Trainer is told."""

import math
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryCalibrationError,
    MulticlassAccuracy,
    MulticlassCalibrationError,
)

from sparkdl._spark.session import is_deterministic
from sparkdl.data.store.dataframe import split_by_fraction
from sparkdl.exceptions import ConfigError, DataError, ModelError, SparkdlWarning
from sparkdl.ml import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchRegressionModel,
    TorchRegressor,
)
from sparkdl.ml.estimators import fitting
from sparkdl.ml.stages import hf
from sparkdl.nn.losses import binary_cross_entropy, cross_entropy, squared_error
from sparkdl.nn.models.mlp import MLP
from sparkdl.nn.signature import Signature, TensorSpec
from sparkdl.optim.clip import ClipByNorm, ClipByValue
from sparkdl.serve import Predictor
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.state import TrainState


class Wide(nn.Module):
    """A module made by a factory with arguments."""

    def __init__(self, width=4, outputs=2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x):
        return self.layers(x)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 1)
        self.second = nn.Linear(1, 3)

    def forward(self, a, b):
        return {"a": self.first(a), "b": self.second(b[:, None])}


class Subtract(nn.Module):
    """Two inputs whose order matters."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, a, b):
        return self.head(a)[:, 0] - b


def both_heads(output, label):
    return (output["a"][:, 0] - label[0]) ** 2 + nn.functional.cross_entropy(
        output["b"], label[1], reduction="none"
    )


def reconstruct(output, inputs):
    return (output - inputs).square().mean(1)


# -- what the Trainer is told --------------------------------------------------------------------------


def test_options_come_from_params_and_attributes(tmp_path):
    hook, schedule = Hook(), partial(torch.optim.lr_scheduler.StepLR, step_size=1)
    est = TorchClassifier(
        batchSize=8,
        seed=-1,
        maxEpochs=3,
        maxIter=5,
        shuffle=False,
        microBatchSize=2,
        precision="bf16",
        codec="fp16",
        transport="direct",
        gradientClipNorm=0.5,
        validationFraction=0.5,
        earlyStoppingPatience=2,
        checkpointPath=str(tmp_path),
        monitor="loss",
        verbose=True,
        hooks=[hook],
        schedule=schedule,
        metrics={"accuracy": MulticlassAccuracy(3)},
        options={"num_shards": 2},
    )
    options = est._options()
    assert options["batch_size"] == 8
    assert options["seed"] == 2**63 - 1
    assert not options["shuffle"]
    assert options["micro_batch_size"] == 2
    assert options["precision"] == "bf16"
    assert options["gradient_codec"] == "fp16"
    assert options["transport"] == "direct"
    assert options["clip"] == ClipByNorm(0.5)
    assert options["schedule"] is schedule
    assert options["monitor"] == "loss"
    assert options["progress"] is True
    assert options["num_shards"] == 2
    assert options["metrics"] is est.metrics
    first, early, checkpoint = options["hooks"]
    assert first is hook
    assert isinstance(early, EarlyStopping)
    assert early.patience == 2
    assert isinstance(checkpoint, Checkpoint)
    ends = options["end_when"]
    assert ends(TrainState(), TrainState(epoch=3))
    assert ends(TrainState(), TrainState(iteration=5))
    assert not ends(TrainState(), TrainState(epoch=2, iteration=4))


def test_without_a_limit_of_iterations_epochs_count():
    ends = TorchClassifier(maxEpochs=3)._options()["end_when"]
    assert not ends(TrainState(), TrainState(epoch=2, iteration=10**6))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"earlyStoppingPatience": 3}, "earlyStoppingPatience needs validation rows"),
        ({"gradientClipNorm": 1.0, "clip": ClipByValue(-1, 1)}, "gradientClipNorm and clip are both set"),
        ({"options": {"batch_size": 3}}, "options: 'batch_size' has a Param or attribute of its own"),
    ],
)
def test_options_that_contradict(values, message):
    with pytest.raises(ConfigError, match=message):
        TorchClassifier(**values)._options()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"resume": True}, "resume=True: checkpointPath"),
        ({"resume": True, "warmStartFrom": "x", "checkpointPath": "y"}, "resume and warmStartFrom are both"),
        (
            {"module": nn.Linear(2, 2), "hyper": {"out_features": 3}},
            "module.out_features is set, but module is",
        ),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), "learningRate": 0.1},
            "learningRate is set, but optimizer is a SGD that has rates of its own",
        ),
        (
            {"optimizer": {"*": partial(torch.optim.SGD, lr=1.0)}, "learningRate": 0.1},
            "learningRate is set, but optimizer is a dict that has rates of its own",
        ),
    ],
)
def test_settings_that_contradict(values, message):
    hyper = values.pop("hyper", {})
    with pytest.raises(ConfigError, match=message):
        TorchClassifier(**values).setHyper(**hyper)._check()


def learning_rate(factory):
    return factory([torch.zeros(2)]).param_groups[0]["lr"]


def test_the_optimizer_is_adam_with_the_learning_rate():
    module = nn.Linear(1, 1)
    assert isinstance(TorchClassifier()._optimizer_factory(module)([torch.zeros(2)]), torch.optim.Adam)
    assert learning_rate(TorchClassifier()._optimizer_factory(module)) == 2e-3
    assert learning_rate(TorchEstimator()._optimizer_factory(module)) == 1e-3
    assert learning_rate(TorchClassifier(learningRate=0.5)._optimizer_factory(module)) == 0.5


@pytest.mark.parametrize(
    ("cls", "rate"), [(TorchClassifier, 2e-3), (TorchRegressor, 2e-3), (TorchEstimator, 1e-3)]
)
def test_a_param_that_is_given_none_has_its_default(cls, rate):
    """Torch got ``lr=None``, and rows were not shuffled."""
    names, usual, module = (
        ("learningRate", "batchSize", "maxEpochs", "seed", "shuffle"),
        cls(),
        nn.Linear(1, 1),
    )
    nothing = dict.fromkeys(names)
    for est in (cls(**nothing), usual.copy({usual.getParam(name): None for name in names})):
        assert learning_rate(est._optimizer_factory(module)) == est.getLearningRate() == rate
        found, expected = est._options(), usual._options()
        assert [found[n] for n in ("batch_size", "seed", "shuffle")] == [32, 0, True]
        assert repr(found["end_when"]) == repr(expected["end_when"])
    sgd = partial(torch.optim.SGD, lr=0.3)
    assert cls(optimizer=sgd, learningRate=None)._optimizer_factory(module) is sgd


def test_a_given_optimizer_keeps_its_learning_rate_unless_it_is_set():
    module, sgd = nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.3)
    assert TorchClassifier(optimizer=sgd)._optimizer_factory(module) is sgd
    assert learning_rate(TorchClassifier(optimizer=sgd, learningRate=0.1)._optimizer_factory(module)) == 0.1
    tuned = TorchClassifier(optimizer=sgd).setHyper("optimizer", momentum=0.9)._optimizer_factory(module)
    group = tuned([torch.zeros(2)]).param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.3, 0.9)


# -- modules -------------------------------------------------------------------------------------------


def test_a_factory_gets_the_hyper_parameters_and_the_seed():
    est = TorchClassifier(module=Wide, seed=3).setHyper(width=7)
    (a, source), (b, _) = est._build(), est._build()
    assert a.layers[0].out_features == 7
    assert torch.equal(a.layers[0].weight, b.layers[0].weight)
    assert source is None or source.arguments == {"width": 7}
    c, _ = est.copy({est.seed: 4})._build()
    assert not torch.equal(a.layers[0].weight, c.layers[0].weight)


def test_building_leaves_the_random_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    TorchClassifier(module=Wide)._build()
    assert torch.equal(torch.rand(1), expected)


def test_factories_that_cannot_work():
    with pytest.raises(ConfigError, match=r"cannot be called with \(depth=3\)"):
        TorchClassifier(module=Wide).setHyper(depth=3)._build()
    with pytest.raises(ConfigError, match="module=3: expected"):
        TorchClassifier(module=3)._build()
    with pytest.raises(ConfigError, match=r"returned 3"):
        TorchClassifier(module=lambda: 3)._build()


def test_the_default_module_is_an_mlp_with_hyper_parameters():
    est = TorchClassifier().setHyper(hidden=[5], activation="tanh", dropout=0.5)
    module, source = est._build(MLP, inputs=3, outputs=2)
    assert [type(layer) for layer in module.layers] == [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear]
    assert source.build().load_state_dict(module.state_dict())


def test_mlp_scales_inputs_and_outputs():
    mlp = MLP(2, 1, hidden=())
    mlp.scale_inputs(torch.tensor([10.0, 3.0]), torch.tensor([2.0, 0.0]))
    mlp.scale_outputs(torch.tensor([5.0]), torch.tensor([100.0]))
    x = torch.tensor([[12.0, 3.0]])
    with torch.no_grad():
        expected = mlp.layers(torch.tensor([[1.0, 0.0]])) * 100 + 5
        assert torch.equal(mlp(x), expected)
        assert torch.equal(mlp(x[:, :1].long(), x[:, 1].double()), expected)


def test_mlp_limits_what_is_far_from_the_mean():
    mlp, plain = MLP(1, 1, limit=5.0), MLP(1, 1)
    plain.load_state_dict(mlp.state_dict())
    x = torch.tensor([[-9.0], [4.0], [5.0], [1e6]])
    with torch.no_grad():
        assert torch.equal(mlp(x), plain(x.clamp(-5, 5)))
        assert mlp(torch.tensor([[torch.nan]])).isnan().all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"limit": 0.0}, "limit=0.0: expected a number above 0"),
        ({"hidden": [0]}, "expected positive integers"),
        ({"activation": "step"}, "expected one of relu"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_mlp_arguments_are_checked(values, message):
    with pytest.raises(ConfigError, match=message):
        MLP(2, 2, **values)


def test_losses_give_one_value_per_row_and_their_mean_is_torchs():
    logits, classes = torch.randn(6, 3), torch.randint(3, (6,))
    assert torch.allclose(cross_entropy(logits, classes).mean(), nn.CrossEntropyLoss()(logits, classes))
    one, zeros = torch.randn(6, 1), torch.randint(2, (6, 1)).float()
    assert torch.allclose(binary_cross_entropy(one, zeros).mean(), nn.BCEWithLogitsLoss()(one, zeros))
    assert binary_cross_entropy(one[:, 0], zeros[:, 0]).shape == (6,)
    assert torch.allclose(squared_error(logits, logits + 2), torch.full((6,), 4.0))
    assert squared_error(logits[:, 0], logits[:, 0]).shape == (6,)


# -- signatures ----------------------------------------------------------------------------------------


def test_signatures_tell_inputs_and_outputs():
    module = TwoHeads().train()
    signature = Signature.of_rows(module, (torch.ones(2, 2), torch.ones(2)))
    assert signature.inputs == (TensorSpec((2,), "float32"), TensorSpec((), "float32"))
    assert signature.outputs == (TensorSpec((1,), "float32", "a"), TensorSpec((3,), "float32", "b"))
    assert module.training
    assert Signature.from_json(signature.to_json()) == signature


def test_signatures_of_named_inputs():
    signature = Signature.of_rows(TwoHeads(), {"b": torch.ones(2), "a": torch.ones(2, 2)})
    assert [(spec.key, spec.shape) for spec in signature.inputs] == [("b", ()), ("a", (2,))]
    assert Signature.probe(TwoHeads(), signature.inputs) == signature
    assert Signature.from_json(signature.to_json()) == signature


def test_signatures_by_shapes_alone():
    inputs = [TensorSpec((), "int64")]
    assert Signature.probe(nn.Embedding(3, 4), inputs).outputs == (TensorSpec((4,), "float32"),)


class Scalar(nn.Module):
    def forward(self, x):
        return x.mean()


class Nothing(nn.Module):
    def forward(self, x):
        return []


def test_modules_without_a_signature():
    with pytest.raises(ModelError, match="first dimension counts rows"):
        Signature.probe(Scalar(), [TensorSpec((2,), "float32")])
    with pytest.raises(ModelError, match="expected a tensor"):
        Signature.probe(Nothing(), [TensorSpec((2,), "float32")])
    with pytest.raises(ModelError, match=r"expected float\[\.\.\., 3\]"):
        Signature.probe(nn.Linear(3, 1), [TensorSpec((2,), "float32")])


# -- with Spark ----------------------------------------------------------------------------------------


def rows(spark, values, schema="a double, b double, label double"):
    return spark.createDataFrame(values, schema)


def points(spark, labels=(0.0, 1.0, 2.0)):
    values = [(Vectors.dense(float(i % 3), float(i)), labels[i % len(labels)]) for i in range(12)]
    return spark.createDataFrame(values, ["features", "label"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"featuresCol": "x"}, "features column 'x' is not in the DataFrame; it has features, label"),
        ({"featuresCols": ["features", "x"]}, "features column 'x'"),
        ({"labelCol": "y"}, "label column 'y' is not in the DataFrame"),
        ({"weightCol": "w"}, "weight column 'w' is not in the DataFrame"),
        ({"validationIndicatorCol": "v"}, "validation indicator column 'v' is not in the DataFrame"),
        ({"validationIndicatorCol": "label"}, "'label' has type double: expected boolean"),
    ],
)
def test_unknown_columns_are_named(spark, values, message):
    with pytest.raises(DataError, match=message):
        TorchClassifier(**values).fit(points(spark))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((0.0, 1.5), "label column 'label' holds 1.5 .*expected integers from 0"),
        ((0.0, -1.0), "label column 'label' holds -1.0"),
        ((0.0, float("nan")), "label"),
        ((0.0, None), "label"),
    ],
)
def test_labels_are_checked(spark, labels, message):
    with pytest.raises(DataError, match=message):
        TorchClassifier(maxIter=1).fit(points(spark, labels))


def test_a_module_with_too_few_logits(spark):
    with pytest.raises(DataError, match="label column 'label' holds 2, but there are 2 classes"):
        TorchClassifier(module=nn.Linear(2, 2), maxIter=5).fit(points(spark))
    with pytest.raises(DataError, match="label column 'label' holds -100.0"):  # which torch passes over
        TorchClassifier(module=nn.Linear(2, 2), maxIter=5).fit(points(spark, (0.0, 1.0, -100.0)))
    with pytest.raises(ConfigError, match="it gives 1 logit, for 2 classes, but label column 'label' has 3"):
        TorchClassifier(module=nn.Linear(2, 1)).fit(points(spark))
    classes = {"ml_attr": {"type": "nominal", "num_vals": 3}}  # as StringIndexer has it
    indexed = points(spark).select("*", F.col("label").alias("index", metadata=classes))
    with pytest.raises(ConfigError, match="it gives 2 logits.* 'index' has 3"):
        TorchClassifier(module=nn.Linear(2, 2), labelCol="index").fit(indexed)
    with pytest.raises(ConfigError, match=r"thresholds=\[0.5\]"):
        TorchClassifier(thresholds=[0.5]).fit(points(spark))


def test_what_fits_no_regression(spark):
    with pytest.raises(ConfigError, match=r"values of shape \(2,\) per row, but .*'label' holds numbers"):
        TorchRegressor(module=nn.Linear(2, 2)).fit(points(spark))


def test_what_the_general_estimator_needs(spark):
    df = points(spark)
    with pytest.raises(ConfigError, match="module=None"):
        TorchEstimator(loss=nn.MSELoss()).fit(df)
    with pytest.raises(ConfigError, match="loss=None"):
        TorchEstimator(module=nn.Linear(2, 1)).fit(df)
    with pytest.raises(ConfigError, match="outputCols: the module returns 2 tensors"):
        TorchEstimator(module=TwoHeads(), loss=both_heads, featuresCols=["features", "label"]).fit(df)
    with pytest.raises(ConfigError, match=r"outputCols=\['p', 'q'\]: the module returns 1 tensors"):
        TorchEstimator(module=nn.Linear(2, 1), loss=nn.L1Loss(), outputCols=["p", "q"]).fit(df)


def test_classes_come_from_metadata_or_labels(spark):
    df = rows(spark, [(1.0, 2.0, 4.0)])
    assert fitting.classes_by_metadata(df, "label") is None
    assert fitting.classes_by_labels(df, "label") == 5
    text = rows(spark, [(1.0, 2.0, "x"), (1.0, 2.0, "y")], "a double, b double, label string")
    indexed = StringIndexer(inputCol="label", outputCol="i").fit(text).transform(text)
    assert fitting.classes_by_metadata(indexed, "i") == 2


def test_validation_rows_are_chosen_by_their_values(spark):
    df = spark.range(1000).selectExpr("cast(id as double) a", "id % 7 b")
    train, validation = split_by_fraction(df, 0.3, 5)
    chosen = {row.a for row in validation.collect()}
    assert 220 < len(chosen) < 380
    assert chosen.isdisjoint(row.a for row in train.collect())
    assert train.count() + len(chosen) == 1000
    _, again = split_by_fraction(df.repartition(5), 0.3, 5)
    assert chosen == {row.a for row in again.collect()}
    _, other = split_by_fraction(df, 0.3, 6)
    assert chosen != {row.a for row in other.collect()}


def test_moments_of_vectors_arrays_and_numbers(spark):
    df = spark.createDataFrame(
        [(Vectors.dense(1.0, 2.0), [3, 5], 1, [[1.0]]), (Vectors.sparse(2, [0], [3.0]), [3, 7], 4, [[2.0]])],
        ["v", "a", "n.x", "m"],
    )
    found = fitting.moments(df, {"v": (2,), "a": (2,), "n.x": (), "m": (1, 1)})
    np.testing.assert_allclose(found["v"], [[2, 1], [2**0.5, 2**0.5]])
    np.testing.assert_allclose(found["a"], [[3, 6], [0, 2**0.5]])
    np.testing.assert_allclose(found["n.x"], [[2.5], [4.5**0.5]])
    np.testing.assert_allclose(found["m"], [[0], [1]])


def test_what_is_no_failure_of_a_job_is_raised_as_it_is(spark, monkeypatch):
    df = spark.createDataFrame([(1.0,)], ["x"])

    def fail(*_):
        raise ValueError("not of Spark")

    monkeypatch.setattr(type(df), "agg", fail)
    with pytest.raises(ValueError, match="^not of Spark$"):
        fitting.moments(df, {"x": ()})


def test_a_fit_sets_everything_of_the_model_and_leaves_the_estimator_alone(spark):
    module = Wide(outputs=3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    est = TorchClassifier(module=module, batchSize=4, maxEpochs=2, validationFraction=0.3, seed=2)
    model = est.fit(points(spark))
    assert model.uid == est.uid
    given = {p: v for p, v in est.extractParamMap().items() if p.name != "standardization"}
    own = {model.getParam("onError"): "raise", model.getParam("errorCol"): "error"}
    assert model.extractParamMap() == given | own
    assert not model.module.training
    assert model.module is not module
    assert est.module is module
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert any(not torch.equal(v, before[n]) for n, v in model.module.state_dict().items())
    assert model.hasSummary
    summary = model.summary
    assert summary.totalEpochs == 2
    assert summary.totalIterations == len(summary.objectiveHistory) == len(summary.history)
    assert [row["name"] for row in summary.history.validations] == ["val", "val"]
    assert set(summary.scores) == {"val/loss"}
    assert summary.stoppedBy == "end_when"
    assert summary.plot() is not None
    assert model.numClasses == 3
    assert model.numFeatures == 2


def test_several_inputs_outputs_and_labels(spark):
    df = points(spark).selectExpr("features", "label as n", "label as y", "cast(label as int) as k")
    est = TorchEstimator(
        module=TwoHeads,
        loss=both_heads,
        featuresCols=["features", "n"],
        labelCols=["y", "k"],
        outputCols=["p", "q"],
        metrics=MulticlassAccuracy(3),
        maxIter=1,
    )
    with pytest.warns(SparkdlWarning, match="metrics: without validation rows none is computed"):
        model = est.fit(df)
    assert model.outputNames() == ["p", "q"]
    assert [spec.key for spec in model.signature.outputs] == ["a", "b"]
    rows = df.toPandas()
    label = torch.tensor(rows.y).float(), torch.tensor(rows.k).long()
    with torch.no_grad():
        output = model.module(torch.tensor([*rows.features]).float(), torch.tensor(rows.n).float())
        expected = both_heads(output, label).mean().item()
    assert model.evaluate(df.withColumn("label", F.lit(9.0)), loss=both_heads)["loss"] == pytest.approx(
        expected
    )


@pytest.mark.jvm
def test_rows_that_change_sides_are_refused(spark):
    """Both parts are queries of their own: of 2,000 rows 1,409 were trained on, and 605 others validated."""
    draw = F.udf(lambda _: random.random(), "double").asNondeterministic()
    df = spark.range(200).select("id", draw("id").alias("x"), F.rand(1).alias("y"))
    with pytest.raises(DataError, match="the query gives other values of x each time it runs"):
        split_by_fraction(df, 0.3, 5)
    for kept in (df.drop("x"), df.cache()):  # the numbers of rand(1) follow from the partitions
        train, held = split_by_fraction(kept, 0.3, 5)
        assert sorted(row.id for part in (train, held) for row in part.collect()) == [*range(200)]
    df.unpersist()
    flagged = df.select("id", (F.col("x") < 0.3).alias("held"))
    with pytest.raises(DataError, match="the query gives other values of held"):
        fitting.split_by_indicator(flagged, "held", ["id"])
    known = df.select("id", "x", (F.col("id") < 9).alias("held"))  # the features alone change
    assert [part.count() for part in fitting.split_by_indicator(known, "held", ["id", "x"])] == [191, 9]


@pytest.mark.jvm
def test_values_that_follow_from_the_rows_that_came_first_are_refused(spark):
    """Spark takes such a query for one that repeats: users of the rows that were trained on validated."""
    draw = F.udf(lambda _: random.random(), "double")  # another order each time, of which Spark is not told
    users = spark.range(200, numPartitions=1).select((F.col("id") % 20).alias("user"), "id")
    shuffled = users.sortWithinPartitions(draw("id"))
    some = shuffled.limit(100)
    of_user = [f("id").alias("id") for f in (F.sum, F.first)]
    queries = some.groupBy("user").agg(of_user[0]), shuffled.groupBy("user").agg(of_user[1])
    for df in (*queries, shuffled.dropDuplicates(["user"])):
        with pytest.raises(DataError, match="the query gives other values of id each time it runs"):
            split_by_fraction(df, 0.3, 5)
    train, held = split_by_fraction(some, 0.3, 5)  # rows that keep their values keep their sides
    assert {row.id for row in train.collect()}.isdisjoint(row.id for row in held.collect())
    for df, expected in (
        (users.limit(9), True),
        (users.distinct(), True),
        (users.dropDuplicates(["user"]), False),
        (users.groupBy("user").agg(F.first("id")), False),
        (users.groupBy("user").count().limit(9), True),
        (users.sample(0.5).groupBy("user").count(), False),
        (users.join(users.offset(9), "user"), False),
    ):
        assert is_deterministic(df) is expected


def test_columns_with_the_names_of_other_inputs_or_outputs(spark):
    """By position the column "b" would have been the argument "a", and the output "a" the column "b"."""
    df = points(spark).selectExpr("label as b", "features as a", "label", "label as y", "int(label) as k")
    for module in (Subtract, Subtract(), lambda: Subtract()):
        with pytest.raises(ConfigError, match=r"\['b', 'a'\] are given by position to Subtract.forward"):
            TorchRegressor(module=module, featuresCols=["b", "a"], maxIter=1).fit(df)
    with pytest.raises(ConfigError, match=r"whose arguments are \['a', 'b'\]"):
        TorchRegressionModel.from_module(Subtract(), featuresCols=["b", "a"])
    by_name = TorchRegressor(module=Subtract, featuresCols=["b", "a"], inputNames=["b", "a"], maxIter=1)
    head, rows = (model := by_name.fit(df)).module.head, model.transform(df).collect()
    with torch.no_grad():
        expected = [head(torch.tensor(row.a.toArray()).float()).item() - row.b for row in rows]
    assert [row.prediction for row in rows] == pytest.approx(expected, rel=1e-5)

    heads = {"loss": both_heads, "featuresCols": ["a", "b"], "labelCols": ["y", "k"], "maxIter": 1}
    for names in (["b", "a"], ["b", "q"], ["p", "a"]):
        with pytest.raises(ConfigError, match=r"the column .* would hold .*the outputs are \['a', 'b'\], in"):
            TorchEstimator(module=TwoHeads, outputCols=names, **heads).fit(df)
    model = TorchEstimator(module=TwoHeads, outputCols=["p", "b"], **heads).fit(df)
    with pytest.raises(ConfigError, match="the column 'b' would hold 'a'"):
        model.copy({model.outputCols: ["b", "p"]}).transform(df)


def test_inputs_by_name_from_fit_to_serving(spark, tmp_path):
    df = points(spark).selectExpr("label as n", "features as f", "label * 2 as label")
    est = TorchRegressor(module=Subtract, featuresCols=["n", "f"], inputNames=["b", "a"], maxIter=2)
    est.save(str(tmp_path / "estimator"))
    model = TorchRegressor.load(str(tmp_path / "estimator"), trust=[Subtract]).fit(df)
    assert [spec.key for spec in model.signature.inputs] == ["b", "a"]
    model.save(str(tmp_path / "model"))
    read = TorchRegressionModel.load(str(tmp_path / "model"), trust=[Subtract])
    rows = df.collect()
    expected = model.predictor()(b=[row.n for row in rows], a=[row.f.toArray() for row in rows])
    # In float32: the last bits depend on the number of rows in a batch, on some processors.
    close = partial(np.testing.assert_allclose, desired=expected, rtol=1e-6)
    for each in (model, read):
        close([row.prediction for row in each.transform(df).collect()])
    assert read.predict((rows[1].n, rows[1].f)) == pytest.approx(expected[1])
    spark.udf.register("predict_named", read.asUdf())
    found = [row.p for row in df.selectExpr("predict_named(n, f) as p").collect()]
    close(found)
    served = Predictor.load(str(tmp_path / "model"), trust=[Subtract])
    close(served(a=[r.f.toArray() for r in rows], b=[r.n for r in rows]))


def test_arguments_that_the_module_does_not_have(spark):
    df = points(spark)
    with pytest.raises(ModelError, match="unexpected keyword argument 'c'"):
        TorchRegressor(module=Subtract, featuresCols=["features", "label"], inputNames=["a", "c"]).fit(df)
    with pytest.raises(ConfigError, match=r"inputNames=\['x'\]: the default module takes inputs by position"):
        TorchRegressor(inputNames=["x"]).fit(df)


def test_no_label_stands_for_the_input(spark):
    est = TorchEstimator(module=nn.Linear(2, 2), loss=reconstruct, labelCol="", maxIter=2)
    assert est.fit(points(spark)).summary.totalIterations == 2


def test_rows_with_nulls_are_left_out_if_wanted(spark):
    df = rows(spark, [(1.0, 2.0, 0.0), (None, 2.0, 1.0), (3.0, 1.0, None), (2.0, 2.0, 1.0)])
    est = TorchClassifier(featuresCols=["a", "b"], encode="off", maxEpochs=1, handleInvalid="skip")
    assert sum(est.fit(df).summary.history.column("samples")) == 2
    with pytest.raises(DataError, match="null"):
        est.copy({est.handleInvalid: "error"}).fit(df)


def test_columns_that_float32_cannot_tell_apart_are_refused(spark):
    """Their values would all be the same one, or a few."""
    near = [1.7e9 + 100 * math.sin(i) for i in range(50)]
    df = spark.createDataFrame(
        [(Vectors.dense(x, 1.0), x, math.sin(i)) for i, x in enumerate(near)], ["features", "t", "y"]
    )
    words = r"about 17000000\d\d.*, with a deviation of \d\d.*; float32, .*steps of 128 there. Subtract"
    with pytest.raises(DataError, match=f"column 't': its values are {words}"):
        TorchRegressor(featuresCols=["y"], labelCol="t").fit(df)
    with pytest.raises(DataError, match=f"column 'features', value 0: its values are {words}.*featuresCols"):
        TorchRegressor(labelCol="y").fit(df)
    model = TorchRegressor(featuresCols=["t"], labelCol="y", maxEpochs=1).fit(df)
    assert len({row.prediction for row in model.transform(df).collect()}) > 40


def test_constant_columns_and_those_far_from_zero_are_no_mistake():
    constant = np.array([0.1, 1.7e9]), np.array([1e-17, 1e-7])
    far = np.array([1.7e9]), np.array([9e6])
    mean, deviation = fitting.joined({"c": constant, "f": far}, ["c", "f"])
    assert mean.dtype == deviation.dtype == torch.float32
    assert mean.tolist() == np.float32([0.1, 1.7e9, 1.7e9]).tolist()


def test_weights_weigh_rows(spark):
    df = spark.createDataFrame(
        [(Vectors.dense(1.0), 0.0, 1.0), (Vectors.dense(1.0), 1.0, 0.0)], ["features", "label", "w"]
    )
    est = TorchClassifier(weightCol="w", maxEpochs=60, learningRate=0.1, standardization=False)
    est.setHyper(hidden=[])
    assert est.fit(df).predictProbability(Vectors.dense(1.0))[0] > 0.9


def test_the_indicator_column_chooses_validation_rows(spark):
    df = points(spark).selectExpr("*", "features is null or label = 0 as v")
    est = TorchClassifier(validationIndicatorCol="v", maxEpochs=3, earlyStoppingPatience=1)
    model = est.fit(df)
    assert sum(model.summary.history.column("samples")) % 8 == 0
    assert model.summary.history.validations


@pytest.mark.parametrize("table", [False, True], ids=["vectors", "table"])
def test_rows_of_neither_side_are_refused_or_left_out(spark, table):
    """Spark's own estimators leave them out."""
    df = points(spark).selectExpr("*", "nullif(label, 1) = 0 as v")
    df = df.withColumn("a", vector_to_array("features")[1])
    sides = {row["v"]: row["count"] for row in df.groupBy("v").count().collect()}
    columns = {"featuresCol": "features"} if not table else {"featuresCols": ["a"]}
    est = TorchClassifier(validationIndicatorCol="v", maxEpochs=1, **columns)
    with pytest.raises(
        DataError, match=rf"column 'v' is null in {sides[None]} of \d+ rows, which are neither"
    ):
        est.fit(df)
    for how in ("keep",) if table else ("skip", "keep"):
        model = est.copy({est.handleInvalid: how}).fit(df)
        assert sum(model.summary.history.column("samples")) == sides[False]
    if not table:
        filled = est.fit(df.fillna({"v": False})).summary.history
        assert sum(filled.column("samples")) == sides[False] + sides[None]


def test_validation_without_rows_is_told_from_training_without(spark):
    with pytest.raises(DataError, match="validation rows: "):
        TorchClassifier(validationFraction=1e-6).fit(points(spark))


def test_regression_of_several_targets_starts_at_their_scale(spark):
    df = spark.createDataFrame(
        [(float(i), [1000.0 + 10 * i, 0.001 * i]) for i in range(10)], "features double, label array<double>"
    )
    model = TorchRegressor(maxEpochs=0).fit(df)
    first, second = model.predict(4.5)
    assert 950 < first < 1150
    assert -0.05 < second < 0.05
    assert model.summary.totalIterations == 0


def test_a_single_logit_tells_two_classes_apart(spark):
    df = points(spark, (0.0, 1.0))
    model = TorchClassifier(module=nn.Linear(2, 1), maxIter=2).fit(df)
    assert model.numClasses == 2
    raw, probability = (f(Vectors.dense(1.0, 2.0)) for f in (model.predictRaw, model.predictProbability))
    assert raw[0] == -raw[1]
    assert probability[1] == pytest.approx(1 / (1 + np.exp(-raw[1])))


def test_the_first_rows_are_read_once(spark, monkeypatch):
    """For a look at shapes and types, and for the dry run, whose labels are as the loss has them."""
    df, reads = points(spark, (0.0, 1.0)), []
    limit = type(df).limit
    monkeypatch.setattr(type(df), "limit", lambda rows, count: reads.append(count) or limit(rows, count))
    TorchClassifier(module=partial(nn.Linear, 2, 2), maxIter=1).fit(df)
    assert reads == [2]


@pytest.mark.parametrize("kind", [T.StringType(), T.CharType(5), T.VarcharType(5)])
def test_char_and_varchar_are_strings(kind):
    """Which Spark keeps with ``spark.sql.preserveCharVarcharTypeInfo``."""
    schema = T.StructType([T.StructField("s", kind), T.StructField("n", T.LongType())])
    df = SimpleNamespace(schema=schema, columns=schema.names)
    assert fitting.is_text(df, "s")
    assert not fitting.is_text(df, "n")
    hf._check_text(df, "inputCol", "s")
    with pytest.raises(DataError, match="inputCol 'n' has type bigint: expected string"):
        hf._check_text(df, "inputCol", "n")


def test_a_single_logit_is_evaluated_on_labels_of_two_classes(spark):
    model = TorchClassifier(module=nn.Linear(2, 1), maxIter=2).fit(points(spark, (0.0, 1.0)))
    for label, message in ((0.5, "holds 0.5"), (2.0, "holds 2, but there are 2 classes")):
        with pytest.raises(DataError, match=f"label column 'label' {message}"):
            model.evaluate(points(spark, (0.0, label)))


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(2, 1)],
        [nn.LayerNorm(2), nn.Linear(2, 1)],
        [nn.LayerNorm(2).requires_grad_(False), nn.Linear(2, 1)],
    ],
)
def test_an_evaluation_is_of_the_module_that_predicts(spark, layers):
    """Of weights of 8 bits, which are no parameters, and are off by a lot for one of 50 beside one of 0.2."""
    module = nn.Sequential(*layers)
    with torch.no_grad():
        module[-1].weight.copy_(torch.tensor([[50.0, 0.19]]))
    df = points(spark, (0.0, 1.0))
    model = TorchRegressionModel.from_module(module, example=np.zeros((2, 2), np.float32)).setQuantize(True)
    rows = np.array([[i % 3, i] for i in range(12)], np.float32)
    expected = np.mean((Predictor.of(model)(rows)[:, 0] - np.arange(12) % 2) ** 2)
    assert model.evaluate(df)["loss"] == pytest.approx(expected, rel=1e-5)
    exact = np.mean((Predictor(model.module)(rows)[:, 0] - np.arange(12) % 2) ** 2)
    assert abs(exact - expected) > 1e-3


@pytest.mark.parametrize("outputs", [1, 2])
def test_metrics_of_logits_that_look_like_probabilities(spark, outputs):
    """A logit of 0.3 is a probability of 0.57, as ``transform`` has it, and no probability of 0.3."""
    module = nn.Linear(2, outputs)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.02, 0.03], [0.1, 0.04]])[-outputs:])
        module.bias.fill_(0.1)
    df, example = points(spark, (0.0, 1.0)), np.zeros((2, 2), np.float32)
    model = TorchClassificationModel.from_module(module, example=example)
    found = model.transform(df).select("label", "prediction", "probability").collect()
    labels = torch.tensor([int(r.label) for r in found])
    probability = torch.tensor(np.array([r.probability.toArray() for r in found]))
    if outputs == 1:
        correct = np.mean([r.label == r.prediction for r in found])
        assert model.evaluate(df, BinaryAccuracy())["binary_accuracy"] == pytest.approx(correct)
        assert 0 < probability[:, 1].logit().min() < probability[:, 1].logit().max() < 1
    error = MulticlassCalibrationError(2, n_bins=5)
    of_two = error if outputs == 2 else BinaryCalibrationError(n_bins=5)
    expected = of_two(probability if outputs == 2 else probability[:, 1], labels)
    (score,) = (value for name, value in model.evaluate(df, of_two).items() if name != "loss")
    assert score == pytest.approx(expected.item(), rel=1e-5)


def test_checkpoints_and_resume(spark, tmp_path):
    df, path = points(spark), str(tmp_path / "run")
    est = TorchClassifier(checkpointPath=path, batchSize=6, maxEpochs=1, seed=5)
    est.fit(df)
    longer = est.copy({est.maxEpochs: 2, est.resume: True}).fit(df)
    straight = TorchClassifier(batchSize=6, maxEpochs=2, seed=5).fit(df)
    assert longer.summary.totalEpochs == 2
    for name, value in straight.module.state_dict().items():
        assert torch.equal(value, longer.module.state_dict()[name]), name


def test_a_fit_goes_on_with_other_rows_and_its_model_evaluates(spark, tmp_path):
    df, path = points(spark), str(tmp_path / "run")
    first = TorchClassifier(checkpointPath=path, batchSize=6, maxEpochs=2).fit(df)
    model = TorchClassifier(warmStartFrom=path, batchSize=6, maxEpochs=1).fit(df.union(df))
    history = model.summary.history
    assert [change["epoch"] for change in history.new_rows] == [2]
    assert history.column("loss")[: first.summary.totalIterations] == first.summary.objectiveHistory
    assert model.summary.totalEpochs == 3
    scores = model.evaluate(df, MulticlassAccuracy(3, average="micro"))
    found = model.transform(df).select("label", "prediction", "rawPrediction").collect()
    assert scores["multiclass_accuracy"] == pytest.approx(np.mean([r.label == r.prediction for r in found]))
    raw = torch.tensor(np.stack([r.rawPrediction.toArray() for r in found]))
    expected = nn.functional.cross_entropy(raw, torch.tensor([int(r.label) for r in found]))
    assert scores["loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_an_error_of_a_fit_carries_what_was_trained_and_it_goes_on(spark, tmp_path):
    class Full(Hook):
        def on_iteration_end(self, run):
            if run.state.iteration == 3:
                raise OSError(28, "No space left on device")

    df, path = points(spark), str(tmp_path / "run")
    est = TorchClassifier(checkpointPath=path, batchSize=6, maxEpochs=9, seed=5)
    est.hooks = [Full()]
    with pytest.raises(OSError, match="No space left") as caught:
        est.fit(df)
    assert caught.value.result.state.iteration == 3
    est.hooks = []
    resumed = est.copy({est.maxIter: 4, est.resume: True}).fit(df)
    straight = TorchClassifier(batchSize=6, maxIter=4, maxEpochs=9, seed=5).fit(df)
    assert resumed.summary.objectiveHistory == straight.summary.objectiveHistory
    for name, value in straight.module.state_dict().items():
        assert torch.equal(value, resumed.module.state_dict()[name]), name


def test_columns_of_numbers_need_no_assembler(spark):
    df = rows(spark, [(float(i), float(-i), float(i % 2)) for i in range(8)])
    together = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(df)
    alone = TorchClassifier(featuresCols=["a", "b"], encode="off", maxIter=2).fit(df)
    assembled = TorchClassifier(maxIter=2).fit(together)
    for a, b in zip(alone.module.parameters(), assembled.module.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
