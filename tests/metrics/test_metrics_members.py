"""Metrics of a collection share a state only if they are known to count alike."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import label_ranking_loss
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryPrecision, BinaryRecall, MultilabelRankingLoss

from sparkdl.metrics.members import members


def scores(*metrics: tuple[str, BinaryAccuracy | BinaryPrecision | BinaryRecall]) -> tuple[int, list[float]]:
    """Return how many states there are, and what each metric says of a score of 0.5 that is right."""
    collection = MetricCollection(dict(metrics), compute_groups=False)
    found = members(collection)
    for member in found:
        member.update(torch.tensor([0.5]), torch.tensor([1]))
    return len(found), [float(collection[name].compute()) for name, _ in metrics]


def test_metrics_with_the_same_settings_share_a_state() -> None:
    assert scores(("precision", BinaryPrecision()), ("recall", BinaryRecall())) == (1, [0.0, 0.0])
    assert scores(("low", BinaryAccuracy(0.3)), ("same", BinaryAccuracy(0.3))) == (1, [1.0, 1.0])


def test_metrics_with_other_settings_share_none() -> None:
    assert scores(("low", BinaryAccuracy(0.3)), ("high", BinaryAccuracy(0.7))) == (2, [1.0, 0.0])


def test_metrics_whose_settings_cannot_be_compared_share_none() -> None:
    class Threshold(float):
        """Cannot be pickled: its class is found nowhere."""

    low, high = BinaryAccuracy(Threshold(0.3)), BinaryAccuracy(Threshold(0.7))
    assert scores(("low", low), ("high", high)) == (2, [1.0, 0.0])


def test_a_ranking_loss_does_not_depend_on_batches() -> None:
    """Beside scikit-learn, where rows with all labels or none count 0: a batch of them counted as one row."""
    generator = torch.Generator().manual_seed(0)
    preds = torch.rand(12, 4, generator=generator)
    target = (torch.rand(12, 4, generator=generator) < 0.4).long()
    target[4:8], target[9] = 0, 1
    expected = label_ranking_loss(target.numpy(), preds.numpy())
    for size in (1, 4, 12):
        metric = MultilabelRankingLoss(num_labels=4)
        (member,) = members(metric)
        for rows, labels in zip(preds.split(size), target.split(size), strict=True):
            member.update(preds=rows, target=labels) if size == 4 else member.update(rows, labels)
        assert float(metric.compute()) == pytest.approx(expected)
