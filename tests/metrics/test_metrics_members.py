"""Metrics of a collection share a state only if they are known to count alike."""

from __future__ import annotations

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryPrecision, BinaryRecall

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
