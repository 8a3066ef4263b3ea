"""Ranking metrics over queries with candidates, such as one positive item among 99 sampled ones.

``torchmetrics.retrieval`` has the same metrics for flat rows. It keeps every prediction until the
end and then visits query after query, and its average precision takes scores of zero and less,
which logits may well be, for items that were not retrieved. These rank a whole batch at once and
keep two numbers. For positive scores without ties they agree with torchmetrics.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from sparkdl.exceptions import ConfigError, is_integer


class _Ranking(Metric):
    """Mean over queries of a score of the ranked candidates.

    A candidate that ties with others ranks behind them if it is relevant: a module that gives every
    candidate the same score earns nothing by it; :class:`NDCG` shares the gain instead. NaN ranks last.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    total: Tensor
    queries: Tensor
    preds: list[Tensor]
    target: list[Tensor]
    indexes: list[Tensor]

    def __init__(self, k: int | None = 10) -> None:
        super().__init__()
        if k is not None and not is_integer(k, 1):
            raise ConfigError(f"k={k!r}: expected the length of the ranking, an integer of at least 1")
        self.k = k
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("queries", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("preds", "target", "indexes"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor, indexes: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            preds: scores, higher is better: shape (queries, candidates), or any shape with
                ``indexes``.
            target: relevance of each candidate, 0 or 1, same shape.
            indexes: the query that each score belongs to, same shape. A query's candidates may then
                lie in any batch and partition, and all scores are kept until the end.

        Raises:
            ValueError: if shapes differ, a relevance is negative or NaN, or there are no queries by
                candidates and no ``indexes``.
        """
        if preds.shape != target.shape or (indexes is not None and indexes.shape != preds.shape):
            shapes = [tuple(t.shape) for t in (preds, target, indexes) if t is not None]
            raise ValueError(f"preds, target and indexes must have one shape, got {shapes}")
        if not bool((target >= 0).all()):
            found = target[~(target >= 0)][0].item()
            raise ValueError(
                f"target has {found}; expected the relevance of each candidate, at least 0. Leave out those "
                "that do not count: flat preds, target and indexes have as many for each query as there are"
            )
        if indexes is not None:
            self.preds.append(preds.flatten())
            self.target.append(target.flatten())
            self.indexes.append(indexes.flatten())
        elif preds.ndim != 2 or not preds.shape[1]:
            raise ValueError(
                f"preds has shape {tuple(preds.shape)}; expected (queries, candidates), or indexes that "
                "say which query each score belongs to"
            )
        else:
            self._add(preds, target)

    def compute(self) -> Tensor:
        """Return the mean over all queries; a query without a relevant candidate counts 0."""
        total, queries = self.total, self.queries
        if len(self.preds):
            flat_total, flat_queries = self._grouped()
            total, queries = total + flat_total, queries + flat_queries
        return (total / queries).float()

    def _add(self, preds: Tensor, target: Tensor) -> None:
        self.total += self._scores(preds, target).sum()
        self.queries += len(preds)

    def _scores(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return one score per query, float64."""
        key = _comparable(preds)
        # A relevant candidate goes just below its equals: by less than float32 scores can differ.
        key = torch.where(target > 0, key.nextafter(torch.tensor(-torch.inf, dtype=torch.float64)), key)
        length = min(self.k or key.shape[1], key.shape[1])
        ranked = target.gather(1, key.topk(length, dim=1).indices).double()
        return self._score(ranked, target.double().topk(length, dim=1).values)

    @abstractmethod
    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        """Score each query from the relevance of its first k candidates, as ranked and at best."""

    def _grouped(self) -> tuple[Tensor, int]:
        """Score flat rows by their query, all queries of one size at once."""
        preds, target, indexes = (dim_zero_cat(s) for s in (self.preds, self.target, self.indexes))
        order = indexes.argsort(stable=True)
        sizes = torch.unique(indexes, return_counts=True)[1]
        starts = sizes.cumsum(0) - sizes
        total = torch.zeros((), dtype=torch.float64)
        for size in sizes.unique():
            rows = order[starts[sizes == size, None] + torch.arange(int(size))]
            total += self._scores(preds[rows], target[rows]).sum()
        return total, len(sizes)


def _comparable(preds: Tensor) -> Tensor:
    lowest = torch.finfo(torch.float64).min
    return preds.double().nan_to_num(nan=lowest, neginf=lowest)


class HitRatio(_Ranking):
    """HR@k: the share of queries with a relevant candidate among the first k.

    Args:
        k: length of the ranking.

    Raises:
        ConfigError: if ``k`` is no integer of at least 1.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.2, 0.3]])
        >>> relevant = torch.tensor([[0, 0, 1], [1, 0, 0]])
        >>> HitRatio(2)(scores, relevant).item()  # second of the first, last of the other
        0.5
    """

    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        return (ranked > 0).any(dim=1).double()


class NDCG(_Ranking):
    """nDCG@k: relevance discounted by log2(rank + 1), over that of the best ranking.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002. The relevance may
    be graded; its gain is linear. Candidates of one score have the mean of their gains, as in
    ``sklearn.metrics.ndcg_score``: this is the mean over all orders in which they may stand.

    Args:
        k: length of the ranking.

    Raises:
        ConfigError: if ``k`` is no integer of at least 1.

    Examples:
        >>> NDCG()(torch.tensor([[0.5, 0.5, 0.1]]), torch.tensor([[3, 1, 0]]))  # any order
        tensor(0.8984)
    """

    def _scores(self, preds: Tensor, target: Tensor) -> Tensor:
        key, order = _comparable(preds).sort(dim=1, descending=True, stable=True)
        gain = target.gather(1, order).double()
        tied = pad(key[:, 1:] != key[:, :-1], (1, 0)).cumsum(dim=1)
        sums = torch.zeros_like(gain).scatter_add_(1, tied, gain)
        counts = torch.zeros_like(gain).scatter_add_(1, tied, torch.ones_like(gain))
        shared = (sums / counts.clamp(min=1)).gather(1, tied)
        length = min(self.k or key.shape[1], key.shape[1])
        return self._score(shared[:, :length], target.double().topk(length, dim=1).values)

    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        discount = 1 / torch.arange(2, ranked.shape[1] + 2, dtype=torch.float64).log2()
        best = (ideal * discount).sum(dim=1)
        return torch.where(best > 0, (ranked * discount).sum(dim=1) / best, 0.0)


class MAP(_Ranking):
    """MAP@k: mean average precision.

    The average precision of a query is the sum of the precision at each relevant candidate among
    the first k, divided by a number of relevant candidates. Without ``k`` all definitions agree; with it they
    differ by what they divide by.

    Args:
        k: length of the ranking; all candidates by default.
        over: ``"relevant"`` divides by min(k, relevant candidates of the query), as Spark's
            ``RankingMetrics`` does; ``"found"`` by those among the first k, as
            ``torchmetrics.retrieval.RetrievalMAP(top_k=k)`` does.

    Raises:
        ConfigError: if ``k`` or ``over`` is something else.
    """

    def __init__(self, k: int | None = None, over: Literal["relevant", "found"] = "relevant") -> None:
        super().__init__(k)
        if over not in ("relevant", "found"):
            raise ConfigError(f"over={over!r}: expected 'relevant' or 'found'")
        self.over = over

    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        hits = (ranked > 0).double()
        precision = hits.cumsum(dim=1) / torch.arange(1, hits.shape[1] + 1)
        divisor = (ideal > 0).sum(dim=1) if self.over == "relevant" else hits.sum(dim=1)
        return (precision * hits).sum(dim=1) / divisor.clamp(min=1)


class MRR(_Ranking):
    """MRR@k: the mean of 1 / rank of the first relevant candidate; 0 if it is not among the first k.

    Args:
        k: length of the ranking; all candidates by default.

    Raises:
        ConfigError: if ``k`` is no integer of at least 1.
    """

    def __init__(self, k: int | None = None) -> None:
        super().__init__(k)

    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        ranks = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64)
        return ((ranked > 0) / ranks).amax(dim=1)


class Recall(_Ranking):
    """Recall@k: the share of the relevant candidates that are among the first k.

    With one relevant candidate in each query this is :class:`HitRatio`.

    Args:
        k: length of the ranking.

    Raises:
        ConfigError: if ``k`` is no integer of at least 1.
    """

    def _scores(self, preds: Tensor, target: Tensor) -> Tensor:
        relevant = (target > 0).sum(dim=1)
        return super()._scores(preds, target) / relevant.clamp(min=1)

    def _score(self, ranked: Tensor, ideal: Tensor) -> Tensor:
        return (ranked > 0).sum(dim=1).double()
