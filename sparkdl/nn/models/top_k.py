"""The best items for a query: by vectors, and then by a model that looks closer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.nn.models.arguments import check_sizes


class TopK(nn.Module):
    """The items whose vectors have the largest inner products with that of a query, found by looking at all.

    The items are gone through in blocks, so that no more than (rows, block) scores are in memory. Ids and
    vectors are buffers: they are saved with the module.

    Args:
        query: from the input to vectors, shape (rows, width), such as :attr:`TwoTower.user_tower`.
        items: number of items.
        width: of the vectors.
        k: how many items to return.
        block: items whose scores are computed at once.

    Shapes:
        input: that of ``query``; and ``seen``, (rows, n), ids of items that are not to be returned, filled up
            with any number that is no item's id.
        output: a dict of ``items``, ids, (rows, k), the best first, and ``scores``, (rows, k). Where ``seen``
            leaves fewer than ``k``, or the query is not finite, ids are -1 and scores minus infinity.

    Raises:
        ConfigError: if an argument cannot work.
    """

    ids: Tensor
    vectors: Tensor

    def __init__(self, query: nn.Module, items: int, width: int, k: int = 10, block: int = 65_536) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, items=items, width=width, k=k, block=block)
        if k > items:
            raise ConfigError(f"{name}: k={k}: there are {items} items")
        self.query, self.items, self.width, self.k, self.block = query, items, width, k, block
        self.register_buffer("ids", torch.zeros(items, dtype=torch.int64))
        self.register_buffer("vectors", torch.zeros(items, width))

    def fill(self, ids: Tensor, vectors: Tensor) -> TopK:
        """Set the items.

        Args:
            ids: shape (items,), each once.
            vectors: shape (items, width).

        Raises:
            DataError: if they have another shape, an id is there twice, or a vector is not finite.
        """
        if ids.shape != self.ids.shape or vectors.shape != self.vectors.shape:
            raise DataError(
                f"ids have shape {tuple(ids.shape)} and vectors {tuple(vectors.shape)}; expected "
                f"{tuple(self.ids.shape)} and {tuple(self.vectors.shape)}",
                code="data-shape",
            )
        if len(torch.unique(ids)) < len(ids):
            raise DataError("ids: an item is there twice; drop duplicates", code="data-value")
        wrong = ~vectors.isfinite().all(1)
        if wrong.any():  # NaN would be the largest score
            raise DataError(
                f"vectors: that of item {ids[wrong][0].item()} ({int(wrong.sum())} such items) is NaN or "
                "infinite; leave such items out",
                code="data-value",
            )
        self.ids.copy_(ids)
        self.vectors.copy_(vectors.detach())
        return self

    def forward(self, *inputs: Tensor, seen: Tensor | None = None, **named: Tensor) -> dict[str, Tensor]:
        """Return the best items of each row."""
        queries = self.query(*inputs, **named)
        wanted = min(self.k + (0 if seen is None else seen.shape[1]), self.items)
        scores = queries.new_empty(len(queries), 0)
        places = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for start in range(0, self.items, self.block):
            found = queries @ self.vectors[start : start + self.block].T
            best, numbers = found.topk(min(wanted, found.shape[1]), 1)
            scores, places = _best(
                torch.cat([scores, best], 1), torch.cat([places, numbers + start], 1), wanted
            )
        ids = self.ids[places]
        if seen is not None:
            known = (ids.unsqueeze(2) == seen.unsqueeze(1)).any(2)
            scores, ids = _best(scores.masked_fill(known, -torch.inf), ids, self.k)
        scores = scores.masked_fill(~queries.isfinite().all(1, keepdim=True), -torch.inf)
        ids = ids.masked_fill(scores == -torch.inf, -1)
        return {"items": ids, "scores": scores}


class Recommender(nn.Module):
    """Retrieves items by vectors and ranks them by a model that looks closer: what is served.

    Args:
        retrieve: gives candidates for each row.
        rank: gives a score for an item and the rest of its inputs, such as :class:`DIN`; the argument for the
            item is ``item``.
        k: how many items to return.
        weight: how much of an item's score by ``retrieve`` is added to that by ``rank``, which was trained to
            correct it; 0 if it was not.

    Shapes:
        input: by name, all that ``retrieve`` and its query, and ``rank``, take, except ``item``.
        output: as of :class:`TopK`, with the sums as scores; no item whose score is NaN.

    Raises:
        ConfigError: if ``retrieve`` gives fewer than ``k`` candidates, or ``rank`` takes no ``item``.
        ModelError: from ``forward``, if neither takes an input.
    """

    def __init__(self, retrieve: TopK, rank: nn.Module, k: int = 10, weight: float = 0.0) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, k=k)
        if k > retrieve.k:
            raise ConfigError(f"{name}: k={k}: retrieve gives {retrieve.k} candidates, expected at least k")
        if "item" not in _arguments(rank):
            raise ConfigError(f"{name}: {type(rank).__name__} takes no argument item")
        self.retrieve, self.rank, self.k, self.weight = retrieve, rank, k, weight

    def forward(self, **named: Tensor) -> dict[str, Tensor]:
        """Return the best items of each row."""
        of_query = {*_arguments(self.retrieve.query), "seen"}
        of_rank = _arguments(self.rank) - {"item"}
        unknown = sorted(named.keys() - of_query - of_rank)
        if unknown:
            raise ModelError(f"neither retrieve nor rank takes {', '.join(unknown)}", code="model-input")
        found = self.retrieve(**{name: value for name, value in named.items() if name in of_query})
        candidates = found["items"]
        count = candidates.shape[1]
        rest = {n: value.repeat_interleave(count, 0) for n, value in named.items() if n in of_rank}
        there = found["scores"] > -torch.inf
        items = torch.where(there, candidates, self.retrieve.ids[0])  # any id that can be looked up
        scores = self.rank(item=items.flatten(), **rest).view(candidates.shape)
        if self.weight:
            scores = scores + self.weight * found["scores"]
        there = there & ~scores.isnan()  # which would be the largest
        scores, items = _best(scores.masked_fill(~there, -torch.inf), candidates, self.k)
        items = items.masked_fill(scores == -torch.inf, -1)
        return {"items": items, "scores": scores}


def _best(scores: Tensor, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the best scores, and their values; of equal ones those that come first."""
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return scores.gather(1, order), values.gather(1, order)


def _arguments(module: nn.Module) -> set[str]:
    found: dict[str, Any] = dict(inspect.signature(module.forward).parameters)
    return set(found)
