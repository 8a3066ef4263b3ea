"""Metrics over uneven parts, merged, are those of a single pass."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import (
    CatMetric,
    MaxMetric,
    MeanMetric,
    Metric,
    MetricCollection,
    MinMetric,
    SumMetric,
)
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import (
    MeanAbsoluteError,
    MeanSquaredError,
    NormalizedRootMeanSquaredError,
    PearsonCorrCoef,
    R2Score,
)
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMAP, RetrievalNormalizedDCG
from torchmetrics.text import ExtendedEditDistance
from torchmetrics.wrappers import BootStrapper, ClasswiseWrapper, MultioutputWrapper

from sparkdl.exceptions import ConfigError
from sparkdl.metrics import MAP, NDCG, HitRatio, Loss
from sparkdl.metrics.merge import check_mergeable, merge, pack
from sparkdl.metrics.spec import scores
from sparkdl.wire import frame

ROWS = 120
SPLITS = [
    [ROWS],
    [0, ROWS],
    [1, 0, 70, 0, 9, 40, 0],
    [60, 60],
    [3] * 40,
]
BATCH = 16

generator = torch.Generator().manual_seed(0)
LOGITS = torch.randn(ROWS, 4, generator=generator)
CLASSES = torch.randint(0, 4, (ROWS,), generator=generator)
PROBABILITY = torch.rand(ROWS, generator=generator)
BINARY = (torch.rand(ROWS, generator=generator) < PROBABILITY).long()
VALUES = torch.randn(ROWS, generator=generator)
TARGETS = VALUES + 0.3 * torch.randn(ROWS, generator=generator)
QUERIES = torch.arange(ROWS) // 7
GRADED = torch.rand(ROWS, 9, generator=generator)
RELEVANT = (torch.rand(ROWS, 9, generator=generator) < 0.2).long()

CLASSIFY = (LOGITS, CLASSES)
REGRESS = (VALUES, TARGETS)
RETRIEVE = (PROBABILITY, BINARY, QUERIES)

EXACT = {
    "accuracy micro": (MulticlassAccuracy(4, average="micro"), CLASSIFY),
    "accuracy macro": (MulticlassAccuracy(4), CLASSIFY),
    "f1": (MulticlassF1Score(4, average=None), CLASSIFY),
    "binary f1": (BinaryF1Score(), (PROBABILITY, BINARY)),
    "confusion matrix": (MulticlassConfusionMatrix(4), CLASSIFY),
    "auroc exact": (BinaryAUROC(), (PROBABILITY, BINARY)),
    "auroc thresholds": (BinaryAUROC(thresholds=20), (PROBABILITY, BINARY)),
    "multiclass auroc": (MulticlassAUROC(4, thresholds=None), CLASSIFY),
    "cat": (CatMetric(), (VALUES,)),
    "max": (MaxMetric(), (VALUES,)),
    "min": (MinMetric(), (VALUES,)),
    "sum of integers": (SumMetric(), (BINARY.float(),)),
    "retrieval hit rate": (RetrievalHitRate(top_k=2), RETRIEVE),
    "retrieval ndcg": (RetrievalNormalizedDCG(), RETRIEVE),
    "retrieval map": (RetrievalMAP(), RETRIEVE),
    "hit ratio": (HitRatio(3), (GRADED, RELEVANT)),
    "map flat": (MAP(), RETRIEVE),
    "classwise": (ClasswiseWrapper(MulticlassAccuracy(4, average=None)), CLASSIFY),
    "collection": (MetricCollection([MulticlassAccuracy(4), MulticlassF1Score(4)]), CLASSIFY),
    "composition": (1.0 - MulticlassAccuracy(4, average="micro"), CLASSIFY),
}  # fmt: skip
CLOSE = {
    "mse": (MeanSquaredError(), REGRESS),
    "mae": (MeanAbsoluteError(), REGRESS),
    "r2": (R2Score(), REGRESS),
    "pearson": (PearsonCorrCoef(), REGRESS),
    "pearson of two": (PearsonCorrCoef(num_outputs=2), (LOGITS[:, :2], LOGITS[:, 1:3] + LOGITS[:, :2])),
    "multioutput": (MultioutputWrapper(R2Score(), 2), (LOGITS[:, :2], LOGITS[:, 1:3])),
    "mean": (MeanMetric(), (VALUES, PROBABILITY)),
    "ndcg": (NDCG(5), (GRADED, RELEVANT)),
    "map": (MAP(), (GRADED, RELEVANT)),
}
TOLERANCE = 2e-5


def part(metric: Any, data: tuple[torch.Tensor, ...], start: int, stop: int) -> Any:
    """Update a fresh metric on rows, batch by batch, and send its states."""
    mine = metric.clone()
    for low in range(start, stop, BATCH):
        mine.update(*(values[low : min(low + BATCH, stop)] for values in data))
    table, arrays = pack({"m": mine})
    return frame.unpack(frame.join(frame.pack({"states": table}, arrays)))


def results(metric: Any, data: tuple[torch.Tensor, ...], split: list[int]) -> tuple[Any, Any]:
    bounds = torch.tensor([0, *split]).cumsum(0).tolist()
    parts = [part(metric, data, lo, hi) for lo, hi in pairwise(bounds)]
    merged, single = metric.clone(), metric.clone()
    merge({"m": merged}, parts)
    for low in range(0, ROWS, BATCH):
        single.update(*(values[low : low + BATCH] for values in data))
    return scores("m", merged), scores("m", single)


@pytest.mark.parametrize("split", SPLITS, ids=lambda s: f"{len(s)} parts")
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str, split: list[int]) -> None:
    merged, single = results(*EXACT[name], split)
    assert merged == single


@pytest.mark.parametrize("split", SPLITS, ids=lambda s: f"{len(s)} parts")
@pytest.mark.parametrize("name", CLOSE)
def test_sums_of_floats(name: str, split: list[int]) -> None:
    merged, single = results(*CLOSE[name], split)
    assert merged.keys() == single.keys()
    for score, value in single.items():
        assert merged[score] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)


def test_loss_is_weighted() -> None:
    parts = []
    for batches in ([(2.0, 3.0), (1.0, 0.5)], [], [(4.0, 1.0)]):
        loss = Loss()
        for batch in batches:
            loss.update(*batch)
        table, arrays = pack({"loss": loss})
        parts.append(frame.unpack(frame.join(frame.pack({"states": table}, arrays))))
    merged = Loss()
    merge({"loss": merged}, parts)
    assert merged.compute() == (6 + 0.5 + 4) / 4.5
    assert merged.update_count == 3


def test_shared_states_of_a_collection_are_sent_once() -> None:
    both = MetricCollection(
        [MulticlassAUROC(4, thresholds=None), MulticlassAccuracy(4), MulticlassF1Score(4)]
    )
    alone = MetricCollection([MulticlassAUROC(4, thresholds=None), MulticlassAccuracy(4)])
    sent = [len(part(metric, CLASSIFY, 0, 40).arrays) for metric in (both, alone)]
    assert sent[0] == sent[1]
    merged, single = results(both, CLASSIFY, [50, 70])
    assert merged == single


class Custom(Metric):
    """A metric of the user's with any reduction."""

    full_state_update = True

    def __init__(self, reduction: Any, default: Any = None) -> None:
        super().__init__()
        self.add_state("value", torch.zeros(2) if default is None else default, dist_reduce_fx=reduction)

    def update(self, x: torch.Tensor) -> None:
        if isinstance(self.value, list):
            self.value.append(x)
        else:
            self.value = self.value + torch.stack([x.min(), x.max()])

    def compute(self) -> Any:
        return self.value


def merged_states(metric: Metric, chunks: list[torch.Tensor]) -> Any:
    merged = metric.clone()
    merge({"m": merged}, [part(metric, (chunk,), 0, len(chunk)) for chunk in chunks])
    return merged.value


def test_every_reduction() -> None:
    chunks = [torch.tensor([1.0, 2.0]), torch.empty(0), torch.arange(32.0)]  # one, no and two updates
    sums = torch.tensor([[1.0, 2.0], [16.0, 46.0]])
    expect = torch.testing.assert_close
    expect(merged_states(Custom("sum"), chunks), sums.sum(0))
    expect(merged_states(Custom("max"), chunks), sums[1])
    expect(merged_states(Custom("min"), chunks), sums[0])
    expect(merged_states(Custom("mean"), chunks), (sums[0] + 2 * sums[1]) / 3)
    expect(merged_states(Custom(None), chunks), sums)
    expect(merged_states(Custom(lambda stacked: stacked.prod(0)), chunks), sums.prod(0))
    expect(merged_states(Custom("cat", []), chunks), torch.cat(chunks))  # as between torchmetrics' processes
    assert [len(x) for x in merged_states(Custom(None, []), chunks)] == [2, 16, 16]
    assert merged_states(Custom(len, []), chunks) == 3


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_list_whose_length_counts_is_merged_to_one_tensor(parts: int) -> None:
    found, wanted = ["a cat sat", "the dog", "red table"], ["a cat sat on it", "a dog", "a red mat"]
    single = ExtendedEditDistance()
    single.update(found, wanted)
    states = []
    for rows in np.array_split(np.arange(3), parts):
        metric = ExtendedEditDistance()
        metric.update([found[row] for row in rows], [wanted[row] for row in rows])
        table, arrays = pack({"m": metric})
        states.append(frame.unpack(frame.join(frame.pack({"states": table}, arrays))))
    merged = ExtendedEditDistance()
    merge({"m": merged}, states)
    torch.testing.assert_close(merged.compute(), single.compute())


class Own(SumMetric):
    def merge_state(self, incoming: Any) -> None:
        self.sum_value = self.sum_value * 10 + incoming["sum_value"]


def test_a_metric_may_merge_itself() -> None:
    parts = [part(Own(), (torch.tensor([x]),), 0, 1) for x in (1.0, 2.0, 3.0)]
    merged = Own()
    merge({"m": merged}, parts)
    assert (merged.compute(), merged.update_count) == (123.0, 3)


class Words(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("words", [], dist_reduce_fx="cat")

    def update(self, x: torch.Tensor) -> None:
        self.words.append("word")

    def compute(self) -> torch.Tensor:
        return torch.tensor(len(self.words))


class Hidden(SumMetric):
    """Keeps what it computes from outside of its states."""

    seen = 0

    def update(self, x: torch.Tensor) -> None:
        super().update(x)
        self.seen += len(x)

    def compute(self) -> torch.Tensor:
        return self.sum_value / self.seen


class Low(Custom):
    def update(self, x: torch.Tensor) -> None:
        self.value = x[:2].to(torch.bfloat16)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Words(), r"metric 'm': state 'words' holds a str"),
        (Low("sum"), r"metric 'm': state 'value' is a torch.bfloat16 tensor"),
        (Custom(None), r"'m' \(Custom\) cannot be computed in parts: .*m/1/1.* one pass gives"),
        (Custom("max"), "'m' .Custom. cannot be computed in parts"),
        (Custom(lambda stacked: stacked[0] + stacked[1]), "'m' .Custom. cannot be computed in parts"),
        (Hidden(), "'m' .Hidden. cannot be computed in parts: .*one pass gives"),
    ],
)
def test_metrics_that_do_not_merge_are_named(metric: Metric, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_mergeable("m", metric, lambda copy: copy.update(torch.tensor([1.0, 2.0])))


@pytest.mark.parametrize("name", {**EXACT, **CLOSE})
def test_good_metrics_pass_the_check(name: str) -> None:
    metric, data = {**EXACT, **CLOSE}[name]
    for rows in (1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as check_metrics does: one row is not much
            check_mergeable("m", metric, lambda copy, rows=rows: copy.update(*(d[:rows] for d in data)))


def test_unequal_parts_tell_what_equal_ones_do_not() -> None:
    """Means of three equal parts are the whole's; those of others torchmetrics merges to something else."""
    metric, data = NormalizedRootMeanSquaredError(num_outputs=3), (GRADED[:, :3], GRADED[:, 3:6])
    cuts = [lambda copy, n=n: copy.update(*(d[n : 2 * n + 2] for d in data)) for n in range(3)]
    check_mergeable("m", metric, cuts[0])
    with pytest.raises(
        ConfigError, match="metric 'm' .NormalizedRootMeanSquaredError. cannot be computed in"
    ):
        check_mergeable("m", metric, *cuts)


def test_random_metrics_pass_the_check() -> None:
    metric = BootStrapper(MeanSquaredError(), num_bootstraps=4)
    check_mergeable("m", metric, lambda copy: copy.update(VALUES[:4], TARGETS[:4]))
