"""Models: what they hold, one row at a time, and columns side by side with Spark's own."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import DenseVector, Vectors
from pyspark.ml.regression import LinearRegression
from pyspark.sql import types as T
from torch import nn

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TorchClassificationModel, TorchClassifier, TorchModel, TorchRegressionModel
from sparkdl.ml.estimators.fitting import check_numbers
from sparkdl.ml.estimators.model import classes_of
from sparkdl.nn.signature import Signature, TensorSpec


class Add(nn.Module):
    """Two inputs."""

    def forward(self, a, b):
        return a + b


class Subtract(nn.Module):
    """Two inputs whose order matters."""

    def forward(self, a, b):
        return a - b


def linear(inputs, outputs):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


# -- without Spark ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "indexed", "labels", "problem"),
    [
        (T.IntegerType(), (), ("2", "0", "1"), "holds numbers, and the model's classes are the strings 2, 0"),
        (T.DoubleType(), (), ("0", "2"), "holds numbers, and the model's classes are the strings 0, 2"),
        (T.DoubleType(), ("no", "yes"), ("yes", "no"), "has 'yes' as 1, and the model's classes"),
        (T.DoubleType(), ("no", "perhaps", "yes"), ("no", "yes"), "has 'yes' as 2"),
        (T.IntegerType(), (), ("0", "1.0", "2"), ""),
        (T.IntegerType(), (), ("NEGATIVE", "POSITIVE"), ""),  # of Hugging Face, fitted on numbers
        (T.DoubleType(), ("neg", "pos"), ("NEGATIVE", "POSITIVE"), ""),
        (T.DoubleType(), ("2", "0", "1"), ("2", "0", "1"), ""),
        (T.DoubleType(), ("a", "b", "__unknown"), ("a", "b"), ""),
        (T.StringType(), (), ("2", "0", "1"), ""),
    ],
)
def test_numbers_are_evaluated_if_they_are_those_of_the_classes(kind, indexed, labels, problem):
    metadata = {"ml_attr": {"type": "nominal", "vals": list(indexed)}} if indexed else {}
    df = SimpleNamespace(schema=T.StructType([T.StructField("y", kind, metadata=metadata)]))
    if not problem:
        check_numbers(df, "y", labels)
        return
    with pytest.raises(DataError, match=re.escape(problem)):
        check_numbers(df, "y", labels)


def test_from_module_copies_and_evaluates():
    module = nn.Sequential(nn.Dropout(0.5), linear(2, 3)).train()
    model = TorchModel.from_module(module, inputShapes=[2], featuresCol="x", predictionCol="p")
    assert module.training
    assert not model.module.training
    assert model.module is not module
    assert model.getFeaturesCol() == "x"
    assert model.signature.outputs == (TensorSpec((3,), "float32"),)
    assert model.numFeatures == 2
    assert not model.hasSummary
    with pytest.raises(RuntimeError, match="No training summary available for this TorchModel"):
        model.summary  # noqa: B018


def test_from_module_learns_from_an_example():
    model = TorchModel.from_module(Add(), example=(np.ones((3, 2)), np.ones((3, 2))), featuresCols=["a", "b"])
    assert model.signature.inputs == (TensorSpec((2,), "float32"),) * 2
    embedding = TorchModel.from_module(nn.Embedding(5, 2), example=torch.tensor([1, 2]))
    assert embedding.signature.inputs == (TensorSpec((), "int64"),)
    assert TorchModel.from_module(Add()).signature.outputs == ()


def test_from_module_refuses_what_it_does_not_know():
    with pytest.raises(ConfigError, match="expected a torch.nn.Module"):
        TorchModel.from_module(3)
    with pytest.raises(ConfigError, match="TorchModel has no Param 'features'"):
        TorchModel.from_module(Add(), features="x")


def test_named_inputs():
    x, y = np.ones((3, 2), np.float32), np.full((3, 2), 2.0, np.float32)
    named = {"featuresCols": ["x", "y"], "inputNames": ["b", "a"]}
    for model in (
        TorchModel.from_module(Subtract(), inputShapes=[[2], [2]], **named),
        TorchModel.from_module(Subtract(), example={"a": y, "b": x}, **named),
        TorchModel.from_module(Subtract(), example=(x, y), **named),
        TorchModel.from_module(Subtract(), example={"b": x, "a": y}, featuresCols=["x", "y"]),
    ):
        assert model.getInputNames() == ["b", "a"]
        assert [spec.key for spec in model.signature.inputs] == ["b", "a"]
        assert {name: column.name for name, column in model.inputColumns().items()} == {"b": "x", "a": "y"}
        np.testing.assert_array_equal(model.predictor()(a=y, b=x), y - x)
    one = TorchRegressionModel.from_module(Subtract(), example={"a": x[:, 0], "b": y[:, 0]}, **named)
    assert one.predict((3.0, 5.0)) == 2.0, "in the order of featuresCols"
    single = TorchModel.from_module(nn.Identity(), inputNames="input", featuresCol="x")
    assert list(single.inputColumns()) == ["input"]


def test_columns_with_the_names_of_arguments_are_for_these():
    a, b = np.full((3, 2), 5.0, np.float32), np.full((3, 2), 2.0, np.float32)
    for columns in (["a", "b"], ["b", "a"]):
        for example in ({"a": a, "b": b}, {"b": b, "a": a}):
            model = TorchModel.from_module(Subtract(), example=example, featuresCols=columns)
            assert all(name == column.name for name, column in model.inputColumns().items())
    with pytest.raises(ConfigError, match=r"argument 'a' the column 'b', which is the name of another"):
        TorchModel.from_module(Subtract(), example={"a": a, "b": b}, featuresCols=["b", "c"])


def test_named_inputs_that_do_not_fit():
    with pytest.raises(
        ConfigError, match=r"inputNames=\['a', 'b'\]: expected one entry for each .*: features"
    ):
        TorchModel.from_module(Subtract(), inputNames=["a", "b"]).inputColumns()
    named = {"featuresCols": ["x", "y"], "inputNames": ["a", "b"]}
    with pytest.raises(ConfigError, match=r"example: found \['a', 'c'\], expected .* \['a', 'b'\]"):
        TorchModel.from_module(Subtract(), example={"a": [1.0], "c": [1.0]}, **named)
    with pytest.raises(ConfigError, match=r"example: found 1 arrays, expected .* \['a', 'b'\]"):
        TorchModel.from_module(Subtract(), example=np.ones(3), **named)


def test_columns_have_the_shapes_of_the_training():
    model = TorchModel(
        Add(), signature=Signature((TensorSpec((2,), "float32"), TensorSpec((1, 2), "int64")), ())
    ).setFeaturesCols(["a", "b"])
    a, b = model.inputColumns()
    assert (a.name, a.shape, a.dtype) == ("a", (2,), "float32")
    assert (b.name, b.shape, b.dtype) == ("b", (1, 2), "int64")
    with pytest.raises(ConfigError, match="Add has 2 inputs"):
        model.setFeaturesCols(["a", "b", "c"]).inputColumns()


def test_one_row_of_a_classifier():
    module = linear(2, 3)
    model = TorchClassificationModel.from_module(module, inputShapes=[2])
    x = Vectors.dense(1.0, -2.0)
    with torch.no_grad():
        logits = module(torch.tensor([[1.0, -2.0]])).double()
    assert model.numClasses == 3
    assert isinstance(model.predictRaw(x), DenseVector)
    np.testing.assert_allclose(model.predictRaw(x), logits[0])
    np.testing.assert_allclose(model.predictProbability(x), logits.softmax(1)[0])
    assert model.predict(x) == model.predict([1.0, -2.0]) == float(logits.argmax())
    assert model.predict(Vectors.sparse(2, [0, 1], [1.0, -2.0])) == float(logits.argmax())
    least = int(logits.argmin())
    assert model.setThresholds([float(k != least) for k in range(3)]).predict(x) == least


def test_one_row_of_a_single_logit():
    model = TorchClassificationModel.from_module(linear(2, 1), inputShapes=[2])
    raw, probability = model.predictRaw([1.0, 2.0]), model.predictProbability([1.0, 2.0])
    assert model.numClasses == 2
    assert raw[0] == -raw[1]
    assert probability[1] == pytest.approx(1 / (1 + np.exp(-raw[1])))
    assert sum(probability) == pytest.approx(1)


def test_one_row_of_a_regression():
    module = linear(2, 1)
    model = TorchRegressionModel.from_module(module, inputShapes=[2])
    assert model.predict([1.0, 2.0]) == pytest.approx(module(torch.tensor([[1.0, 2.0]])).item())
    several = TorchRegressionModel.from_module(linear(2, 3), inputShapes=[2])
    assert several.predict(Vectors.dense(1.0, 2.0)).shape == (3,)
    both = TorchRegressionModel.from_module(Add(), inputShapes=[[1], [1]], featuresCols=["a", "b"])
    assert both.predict((1.0, 2.0)) == 3.0


def test_what_is_unknown_is_minus_one_as_in_spark():
    model = TorchClassificationModel()
    assert model.numClasses == model.numFeatures == -1


def test_shapes_of_classifiers():
    assert [classes_of(shape) for shape in ((), (1,), (2,), (5,))] == [2, 2, 2, 5]
    with pytest.raises(ConfigError, match="one logit per class"):
        classes_of((3, 8, 8))


# -- side by side with Spark's own -------------------------------------------------------------------


@pytest.fixture
def df(spark):
    values = [(Vectors.dense(float(i % 3), float(i)), float(i % 3)) for i in range(12)]
    return spark.createDataFrame(values, ["features", "label"])


def classifier(**values):
    return TorchClassificationModel.from_module(linear(2, 3), inputShapes=[2], **values)


def test_columns_and_metadata_are_those_of_logistic_regression(df):
    theirs = LogisticRegression(maxIter=1).fit(df).transform(df).schema
    ours = classifier().transform(df).schema
    assert ours.names == theirs.names
    for mine, other in zip(ours.fields, theirs.fields, strict=True):
        assert mine.dataType == other.dataType, mine.name
        assert mine.metadata == other.metadata, mine.name


def test_columns_of_a_regression_are_those_of_linear_regression(df):
    theirs = LinearRegression(maxIter=1).fit(df).transform(df).schema
    ours = TorchRegressionModel.from_module(linear(2, 1), inputShapes=[2]).transform(df).schema
    assert ours.names == theirs.names
    for mine, other in zip(ours.fields, theirs.fields, strict=True):
        assert mine.dataType == other.dataType, mine.name
        assert mine.metadata == other.metadata, mine.name


@pytest.mark.parametrize(
    ("left_out", "names"),
    [
        (["rawPredictionCol"], ["probability", "prediction"]),
        (["probabilityCol", "predictionCol"], ["rawPrediction"]),
        (["rawPredictionCol", "probabilityCol", "predictionCol"], []),
    ],
)
def test_an_empty_name_leaves_a_column_out_as_in_spark(df, left_out, names):
    values = dict.fromkeys(left_out, "")
    theirs = LogisticRegression(maxIter=1, **values).fit(df).transform(df)
    ours = classifier(**values).transform(df)
    assert ours.columns == theirs.columns == ["features", "label", *names]


def test_thresholds_decide_as_in_spark(df):
    theirs = LogisticRegression(maxIter=5, thresholds=[0.1, 0.6, 0.3]).fit(df)
    module = nn.Linear(2, 3)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(theirs.coefficientMatrix.toArray()))
        module.bias.copy_(torch.tensor(theirs.interceptVector.toArray()))
    ours = TorchClassificationModel.from_module(module, inputShapes=[2], thresholds=theirs.getThresholds())
    expected, found = theirs.transform(df).collect(), ours.transform(df).collect()
    for row, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(row.rawPrediction, other.rawPrediction, atol=1e-5)
        np.testing.assert_allclose(row.probability, other.probability, atol=1e-6)
        assert row.prediction == other.prediction
        assert ours.predict(row.features) == row.prediction


def test_models_and_estimators_copy_as_in_spark(df):
    for cls, values in ((LogisticRegression, {"maxIter": 1}), (TorchClassifier, {"maxIter": 1})):
        est = cls(**values)
        model = est.fit(df, {est.predictionCol: "p"})
        assert model.uid == est.uid
        assert model.getPredictionCol() == "p"
        assert est.getPredictionCol() == "prediction"
        assert model.copy().uid == model.uid
        assert model.copy({model.predictionCol: "q"}).transform(df).columns[-1] == "q"
        assert model.transform(df, {model.predictionCol: "r"}).columns[-1] == "r"
        assert model.numClasses == 3
        assert model.numFeatures == 2
        assert model.hasSummary
        with pytest.raises(Exception, match="x"):
            _ = model.setFeaturesCol("x").transform(df).columns


def test_an_output_column_that_is_there_already_is_named(df):
    with pytest.raises(DataError, match="'label'"):
        classifier(predictionCol="label").transform(df)
