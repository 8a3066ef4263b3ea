"""Logits of which some batches are from 0 to 1, beside scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch import Tensor
from torchmetrics import MeanSquaredError, Metric, MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    BinaryF1Score,
    BinaryPrecision,
    BinaryPrecisionRecallCurve,
    BinaryRecall,
    MulticlassAccuracy,
    MulticlassAUROC,
    MultilabelAccuracy,
)

from sparkdl.metrics.logits import Logits, mixed, total
from sparkdl.metrics.merge import pack
from sparkdl.metrics.spec import MetricSpec

RNG = np.random.default_rng(0)
SCORES = torch.from_numpy(RNG.normal(0.5, 1.5, 100)).float()
LABELS = (SCORES + torch.from_numpy(RNG.normal(0, 2, 100)) > 0.5).long()


def value(metric: Any, preds: Tensor, target: Tensor, rows: int, prepare: Any = None) -> dict[str, float]:
    """Return the scores of an evaluation: once more, if some batches were taken for probabilities."""
    known: list[str] = []
    for _ in range(2):
        spec, parts = MetricSpec(metric, prepare).fresh(), []
        for part in np.array_split(np.arange(len(preds)), 3):
            logits = Logits(known)
            for begin in range(0, len(part), rows):
                some = part[begin : begin + rows]
                logits.update("m", spec, preds[some], target[some], None)
            parts.append(logits.seen)
        known += mixed(total(parts))
    found = spec.metric.compute()
    return {k: float(v) for k, v in found.items()} if isinstance(found, dict) else {"": float(found)}


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_scores_do_not_depend_on_the_rows_of_a_batch(rows: int) -> None:
    expected = {
        "BinaryAUROC": roc_auc_score(LABELS, SCORES),
        "BinaryAccuracy": accuracy_score(LABELS, SCORES > 0),
    }
    both = MetricCollection([BinaryAUROC(), BinaryAccuracy()])
    assert value(both, SCORES, LABELS, rows) == pytest.approx(expected)

    def by_name(output: Tensor, label: Tensor, _: Any) -> dict[str, Tensor]:
        return {"preds": output, "target": label}

    assert value(both, SCORES, LABELS, rows, by_name) == pytest.approx(expected)
    several = torch.stack([SCORES, 1 - SCORES.abs(), SCORES.flip(0)], 1)
    classes = torch.arange(100) % 3
    probabilities = several.double().softmax(1)
    area = roc_auc_score(classes, probabilities, multi_class="ovr", average="macro")
    joined = MetricCollection([MulticlassAUROC(3), MulticlassAccuracy(3, average="micro")])
    assert value(joined, several, classes, rows) == pytest.approx(
        {"MulticlassAUROC": area, "MulticlassAccuracy": accuracy_score(classes, several.argmax(1))}
    )
    labels = torch.stack([LABELS, 1 - LABELS, LABELS], 1)
    right = float(((several > 0).long() == labels).float().mean())
    assert value(MultilabelAccuracy(3, average="micro"), several, labels, rows)[""] == pytest.approx(right)


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("logits", [True, False])
def test_an_output_of_nan_leaves_the_others_of_its_batch_as_they_are(rows: int, logits: bool) -> None:
    scores = SCORES.clone() if logits else SCORES.sigmoid()
    scores[5] = torch.nan
    probabilities = (scores.sigmoid() if logits else scores).nan_to_num(0.0)
    expected = {
        BinaryAccuracy: accuracy_score(LABELS, probabilities > 0.5),
        BinaryAUROC: roc_auc_score(LABELS, probabilities),
    }
    for kind, score in expected.items():
        assert value(kind(), scores, LABELS, rows)[""] == pytest.approx(score, abs=1e-6)
    classes = torch.stack([1 - probabilities, probabilities], 1)
    classes[5] = torch.nan
    found = value(MulticlassAUROC(2), classes.log() if logits else classes, LABELS, rows)[""]
    first, second = classes.nan_to_num(0.0).unbind(1)
    both = roc_auc_score(1 - LABELS, first), roc_auc_score(LABELS, second)
    assert found == pytest.approx(sum(both) / 2, abs=1e-6)


def test_probabilities_and_other_metrics_get_what_there_is() -> None:
    chances = SCORES.sigmoid()
    assert value(BinaryAccuracy(0.7), chances, LABELS, 2)[""] == pytest.approx(
        accuracy_score(LABELS, chances > 0.7)
    )
    mixture = MetricCollection([BinaryAccuracy(), MeanSquaredError()])
    errors: list[tuple[Metric | MetricCollection, Tensor]] = [(MeanSquaredError(), SCORES), (mixture, SCORES)]
    for metric, preds in errors:
        found = value(metric, preds, LABELS, 1)
        squared = float(((SCORES - LABELS) ** 2).mean())
        assert found.get("", found.get("MeanSquaredError")) == pytest.approx(squared)


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_metrics_of_a_collection_decide_each_for_itself(rows: int) -> None:
    """The squared error is of what the module returns; the accuracy was of what a batch looked like."""
    both = MetricCollection([BinaryAccuracy(), MeanSquaredError(), BinaryAUROC()], prefix="of_")
    expected = {
        "of_BinaryAccuracy": accuracy_score(LABELS, SCORES > 0),
        "of_MeanSquaredError": float(((SCORES - LABELS) ** 2).mean()),
        "of_BinaryAUROC": roc_auc_score(LABELS, SCORES),
    }
    assert value(both, SCORES, LABELS, rows) == pytest.approx(expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_metrics_whose_first_rows_are_alike_stay_apart(rows: int) -> None:
    """No score of the first rows lies between the thresholds, and no label there is left out."""
    chances, target = SCORES.sigmoid(), LABELS.clone()
    chances[:60] = chances[:60].round()
    target[75::5] = 0
    several = MetricCollection(
        {
            "at_half": BinaryAccuracy(),
            "at_most": BinaryAccuracy(0.7),
            "precision": BinaryPrecision(),
            "recall": BinaryRecall(0.7),
            "f1": BinaryF1Score(),
            "curve": BinaryAUROC(),
            "area": BinaryAveragePrecision(),
        }
    )
    half, most = chances > 0.5, chances > 0.7
    assert value(several, chances, target, rows) == pytest.approx(
        {
            "at_half": accuracy_score(target, half),
            "at_most": accuracy_score(target, most),
            "precision": precision_score(target, half),
            "recall": recall_score(target, most),
            "f1": f1_score(target, half),
            "curve": roc_auc_score(target, chances),
            "area": average_precision_score(target, chances),
        }
    )


def test_outputs_of_a_loss_of_logits_are_logits() -> None:
    """Also where all lie from 0 to 1; what a function makes of them is the metric's as it is."""
    scores = SCORES.sigmoid()  # as logits all of class 1
    for prepare, classes in ((None, scores > 0), (lambda output, label, _: (output, label), scores > 0.5)):
        spec = MetricSpec(BinaryAccuracy(), prepare).fresh()
        Logits(given=True).update("m", spec, scores, LABELS, None)
        assert float(spec.metric.compute()) == pytest.approx(accuracy_score(LABELS, classes))


def test_metrics_that_count_alike_share_their_state() -> None:
    spec = MetricSpec(
        MetricCollection(
            [
                BinaryPrecision(),
                BinaryRecall(),
                BinaryF1Score(),
                BinaryAveragePrecision(),
                BinaryPrecisionRecallCurve(),
            ]
        )
    ).fresh()
    Logits().update("m", spec, SCORES, LABELS, None)
    table, _ = pack({"m": spec.metric})
    shared = {name: of for name, of in table.items() if isinstance(of, str)}
    assert shared == {
        "m:BinaryRecall": "m:BinaryPrecision",
        "m:BinaryF1Score": "m:BinaryPrecision",
        "m:BinaryPrecisionRecallCurve": "m:BinaryAveragePrecision",
    }


def test_labels_that_do_not_count_say_nothing_of_the_outputs() -> None:
    chances, target = SCORES.sigmoid(), LABELS.clone()
    chances[::5], target[::5] = 40.0, -1
    counted = target >= 0
    found = value(BinaryAccuracy(ignore_index=-1), chances, target, 3)[""]
    assert found == pytest.approx(accuracy_score(target[counted], chances[counted] > 0.5))
