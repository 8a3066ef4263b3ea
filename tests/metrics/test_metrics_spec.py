"""Names, arguments and scores of metrics."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import CatMetric, MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryFairness, MulticlassAccuracy, MulticlassF1Score
from torchmetrics.regression import MeanSquaredError, R2Score
from torchmetrics.wrappers import ClasswiseWrapper, MinMaxMetric, Running

from sparkdl.exceptions import ConfigError
from sparkdl.metrics import MAP, NDCG, HitRatio, Loss, MetricSpec
from sparkdl.metrics.spec import higher_is_better, metric_specs, scores


def collection():
    return MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)])


def twice(output, label, inputs):
    return output, output


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (None, []),
        ({}, []),
        (MeanSquaredError(), ["mean_squared_error"]),
        ([R2Score(), BinaryAUROC(), HitRatio()], ["r2_score", "binary_auroc", "hit_ratio"]),
        ([NDCG(), MAP()], ["ndcg", "map"]),
        ((R2Score(), MeanMetric()), ["r2_score", "mean_metric"]),
        ((R2Score(), twice), ["r2_score"]),
        ([(R2Score(), twice), MetricSpec(MeanMetric(), twice)], ["r2_score", "mean_metric"]),
        ({"a": R2Score(), "b": (R2Score(), twice)}, ["a", "b"]),
        (collection(), [""]),
        ([collection(), Loss()], ["", "loss"]),
    ],
)  # fmt: skip
def test_names(metrics, names):
    specs = metric_specs(metrics)
    assert list(specs) == names
    assert list(metric_specs(specs)) == names


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([R2Score(), R2Score()], "two are called 'r2_score'; name them with a dict"),
        ({"loss": R2Score()}, "'loss' is that of the run's own loss"),
        ({"": R2Score()}, "'' is not a name"),
        ({1: R2Score()}, "1 is not a name"),
        ({"a": "accuracy"}, "metric 'accuracy': expected a torchmetrics.Metric"),
        ({"a": R2Score}, r"metric R2Score is a class; make one: R2Score\(...\)"),
        (R2Score, "metric R2Score is a class"),
        ("accuracy", r"metric 'accuracy': expected .*classification.MulticlassAccuracy\(num_classes"),
        (["acc", "f1"], "metric 'acc': expected .*MulticlassAccuracy"),
        (("f1", "auc"), "metric 'f1': expected .*MulticlassF1Score"),
        ({"rmse": "rmse"}, r"MeanSquaredError\(squared=False\)"),
        (b"mse", "metric b'mse': expected"),
        (7, "metric 7: expected"),
        ([[R2Score()]], "expected a torchmetrics.Metric"),
        ({"a": MetricSpec(R2Score(), None), "b": 3}, "metric 3: expected"),
        ({"window": Running(SumMetric(), 3)}, "'window' has a running window"),
        ({"best": MinMaxMetric(R2Score())}, "'best' remembers the least and greatest value of earlier"),
        (MetricCollection({"best": MinMaxMetric(R2Score())}), "remembers the least and greatest value"),
        ({"fair": BinaryFairness(2)}, "'fair' .BinaryFairness. numbers the groups of a batch"),
    ],
)
def test_bad_metrics(metrics, message):
    with pytest.raises(ConfigError, match=message):
        metric_specs(metrics)
    with pytest.raises(ConfigError, match="prepare=1"):
        MetricSpec(R2Score(), 1)


def test_specs_are_copies_without_state():
    metric = SumMetric()
    metric.update(3.0)
    spec = metric_specs({"sum": metric})["sum"]
    spec.metric.update(1.0)
    assert (metric.compute(), spec.metric.compute()) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (None, 0.25),
        (lambda output, label, inputs: (output, output), 0.0),
        (lambda output, label, inputs: {"preds": label, "target": inputs}, 1.0),
    ],
)
def test_arguments(prepare, expected):
    spec = MetricSpec(MeanSquaredError(), prepare)
    spec.update(torch.tensor([1.0]), torch.tensor([1.5]), torch.tensor([0.5]))
    assert spec.metric.compute() == expected


def test_one_argument_and_no_label():
    spec = MetricSpec(SumMetric(), lambda output, label, inputs: output)
    spec.update(torch.ones(3), None, None)
    assert spec.metric.compute() == 3
    spec = MetricSpec(MeanSquaredError())
    spec.update(torch.ones(3), None, torch.zeros(3))
    assert spec.metric.compute() == 1


def test_scores_are_flat():
    def computed(name, metric, *args):
        metric.update(*args)
        return scores(name, metric)

    preds, target = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])
    assert computed("accuracy", MulticlassAccuracy(3, average="micro"), preds, target) == {"accuracy": 0.75}
    per_class = computed("recall", MulticlassAccuracy(3, average=None), preds, target)
    assert per_class == {"recall/0": 1.0, "recall/1": 0.5, "recall/2": 1.0}
    assert set(computed("", collection(), preds, target)) == {"MulticlassAccuracy", "MulticlassF1Score"}
    named = computed(
        "c", ClasswiseWrapper(MulticlassAccuracy(3, average=None), ["x", "y", "z"]), preds, target
    )
    assert set(named) == {f"c/multiclassaccuracy_{n}" for n in "xyz"}
    assert computed("cat", CatMetric(), 5.0) == {"cat": 5.0}

    class Words(SumMetric):
        def compute(self):
            return "many"

    with pytest.raises(ConfigError, match="'words': compute\\(\\) returned a str"):
        computed("words", Words(), 1.0)


def test_higher_is_better():
    specs = metric_specs(
        {
            "mse": MeanSquaredError(),
            "accuracy": MulticlassAccuracy(3, average=None),
            "mean": MeanMetric(),
            "all": MetricCollection([MulticlassAccuracy(3), MeanSquaredError()]),
            "named": ClasswiseWrapper(MulticlassAccuracy(3, average=None)),
        }
    )
    expected = {
        "loss": False,
        "mse": False,
        "accuracy/2": True,
        "mean": None,
        "all/MeanSquaredError": False,
        "all/MulticlassAccuracy": True,
        "named/multiclassaccuracy_0": True,
        "unknown": None,
    }
    assert {name: higher_is_better(specs, name) for name in expected} == expected
    assert higher_is_better(metric_specs(collection()), "MulticlassF1Score") is True
