"""Ranking metrics against torchmetrics and by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torchmetrics.functional.retrieval import (
    retrieval_average_precision,
    retrieval_hit_rate,
    retrieval_normalized_dcg,
    retrieval_recall,
    retrieval_reciprocal_rank,
)

from sparkdl.exceptions import ConfigError
from sparkdl.metrics import MAP, MRR, NDCG, HitRatio, Recall


def score(metric, preds, target, indexes=None):
    metric.update(torch.as_tensor(preds), torch.as_tensor(target), indexes)
    return metric.compute().item()


@st.composite
def rankings(draw):
    queries, candidates = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    seed, relevant = draw(st.integers(0, 10_000)), draw(st.floats(0.05, 0.9))
    generator = torch.Generator().manual_seed(seed)
    # Distinct and positive: torchmetrics averages ties and does not retrieve scores below zero.
    preds = torch.argsort(torch.rand(queries, candidates, generator=generator)).float() + 1
    return preds, (torch.rand(queries, candidates, generator=generator) < relevant).long()


@settings(deadline=None, max_examples=60)
@given(rankings(), st.integers(1, 14))
def test_agreement_with_torchmetrics(ranking, k):
    preds, target = ranking
    for metric, reference in [
        (HitRatio(k), partial(retrieval_hit_rate, top_k=k)),
        (NDCG(k), partial(retrieval_normalized_dcg, top_k=k)),
        (MAP(), retrieval_average_precision),
        (MRR(k), partial(retrieval_reciprocal_rank, top_k=k)),
        (Recall(k), partial(retrieval_recall, top_k=k)),
    ]:
        expected = torch.stack([reference(p, t) for p, t in zip(preds, target, strict=True)]).mean()
        assert score(metric, preds, target) == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("metric", [HitRatio, NDCG, MAP, MRR, Recall])
@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_no_relevance_is_below_0_or_nan(metric, wrong):
    preds, target = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[wrong, 0.0, 1.0]])
    for indexes in (None, torch.zeros(1, 3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=f"target has {wrong}; expected the relevance of each candidate"):
            metric().update(preds, target, indexes)


@pytest.mark.parametrize("rank", [1, 9, 10, 11, 12])
def test_by_default_rankings_have_ten_places_but_those_of_means_all(rank):
    preds, target = torch.arange(12, 0, -1.0)[None], torch.zeros(1, 12, dtype=torch.int64)
    target[0, rank - 1] = 1
    among = float(rank <= 10)
    assert score(HitRatio(), preds, target) == among
    assert score(Recall(), preds, target) == among
    assert score(NDCG(), preds, target) == pytest.approx(among / math.log2(1 + rank))
    assert score(MRR(), preds, target) == pytest.approx(1 / rank)
    assert score(MAP(), preds, target) == pytest.approx(1 / rank)


@settings(deadline=None, max_examples=30)
@given(rankings(), rankings(), st.randoms())
def test_flat_rows_in_any_order_give_the_same(first, second, random):
    offset = len(first[0])
    flat = [
        (p.item(), t.item(), q + base)
        for base, (preds, target) in ((0, first), (offset, second))
        for q, (row, relevant) in enumerate(zip(preds, target, strict=True))
        for p, t in zip(row, relevant, strict=True)
    ]
    random.shuffle(flat)
    for kind in (HitRatio, NDCG, MAP, MRR, Recall):
        grouped, rows = kind(3), kind(3)
        grouped.update(*first)
        grouped.update(*second)
        for chunk in (flat[: len(flat) // 3], flat[len(flat) // 3 :]):
            if chunk:
                p, t, q = zip(*chunk, strict=True)
                rows.update(torch.tensor(p), torch.tensor(t), torch.tensor(q))
        assert rows.compute().item() == pytest.approx(grouped.compute().item(), abs=1e-6)


def test_by_hand():
    preds = [[0.1, 0.9, 0.5, 0.3], [-4.0, -3.0, -2.0, -1.0]]  # logits below zero rank like others
    target = [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert score(HitRatio(1), preds, target) == 0.0
    assert score(HitRatio(2), preds, target) == 0.5
    assert score(HitRatio(9), preds, target) == 1.0
    assert score(MAP(), preds, target) == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1 / 4) / 2)
    assert score(MAP(2), preds, target) == pytest.approx((1 / 2) / 2 / 2)  # min(k, relevant) = 2


def test_ncf_protocol():
    """One positive among 99 sampled candidates: nDCG is 1 / log2(rank + 1), as in the paper."""
    preds = torch.arange(100.0).flip(0).repeat(3, 1)
    target = torch.zeros(3, 100, dtype=torch.int64)
    for query, rank in enumerate((1, 10, 11)):
        target[query, rank - 1] = 1
    assert score(HitRatio(10), preds, target) == pytest.approx(2 / 3)
    expected = (1 + 1 / torch.log2(torch.tensor(11.0))) / 3
    assert score(NDCG(10), preds, target) == pytest.approx(expected.item())


@pytest.mark.parametrize("preds", [torch.zeros(1, 100), torch.full((1, 100), torch.nan)], ids=["ties", "nan"])
def test_a_module_that_says_nothing_scores_nothing(preds):
    target = torch.zeros(1, 100, dtype=torch.bool)
    target[0, 0] = True
    assert score(HitRatio(10), preds, target) == 0.0
    assert score(MAP(), preds, target) == pytest.approx(0.01)


def test_graded_relevance_and_ties_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    preds, target = random.integers(0, 4, (40, 12)) / 4, random.integers(0, 4, (40, 12))
    for k in (1, 3, 12):
        assert score(NDCG(k), preds, target) == pytest.approx(ndcg_score(target, preds, k=k), abs=1e-6)
    for order in ([3, 1, 0], [1, 3, 0]):
        expected = ndcg_score([order], [[0.5, 0.5, 0.1]])
        assert score(NDCG(), [[0.5, 0.5, 0.1]], [order]) == pytest.approx(expected, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(rankings(), st.integers(1, 14))
def test_a_cut_map_is_sparks_or_torchmetrics(ranking, k):
    preds, target = ranking
    spark, torchs = [], []
    for p, t in zip(preds, target, strict=True):
        torchs.append(retrieval_average_precision(p, t, top_k=min(k, len(p))).item())
        hits, gained = 0, 0.0  # as RankingMetrics.meanAveragePrecisionAt
        for rank, at in enumerate(p.argsort(descending=True)[:k].tolist(), 1):
            hits += int(t[at])
            gained += hits / rank * int(t[at])
        spark.append(gained / max(1, min(k, int(t.sum()))))
    assert score(MAP(k), preds, target) == pytest.approx(np.mean(spark), abs=1e-6)
    assert score(MAP(k, over="found"), preds, target) == pytest.approx(np.mean(torchs), abs=1e-6)


def test_a_query_without_relevant_candidates_counts_zero():
    preds, target = torch.rand(2, 5), torch.tensor([[0] * 5, [1] * 5])
    assert [score(m, preds, target) for m in (HitRatio(2), NDCG(2), MAP())] == [0.5, 0.5, 0.5]


def test_flags_and_bad_arguments():
    assert all(kind.higher_is_better for kind in (HitRatio, NDCG, MAP))
    with pytest.raises(ConfigError, match="k=0"):
        HitRatio(0)
    with pytest.raises(ConfigError, match="over='all': expected 'relevant' or 'found'"):
        MAP(5, over="all")
    with pytest.raises(ValueError, match=r"preds has shape \(4,\); expected \(queries, candidates\)"):
        HitRatio().update(torch.rand(4), torch.ones(4))
    with pytest.raises(ValueError, match=r"must have one shape, got \[\(1, 4\), \(1, 3\)\]"):
        HitRatio().update(torch.rand(1, 4), torch.ones(1, 3))
