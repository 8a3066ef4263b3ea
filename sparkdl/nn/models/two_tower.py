"""Two towers: users and items as vectors, whose inner products say what a user takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.din import is_real
from sparkdl.nn.models.parts import Cardinality, FieldEmbedding, check_cardinalities, perceptron, seeds_after


class Tower(nn.Module):
    """One side: columns, perhaps past items, and a perceptron of ``widths`` to a vector of length 1."""

    def __init__(self, embed: FieldEmbedding | None, past: nn.Module | None, widths: Sequence[int]) -> None:
        super().__init__()
        self.embed, self.past, self.widths = embed, past, tuple(widths)
        self.hidden = perceptron(widths[:-1])
        self.head = nn.Linear(widths[-2], widths[-1])

    def forward(
        self, columns: Tensor | None = None, history: Tensor | None = None, length: Tensor | None = None
    ) -> Tensor:
        """Return the vector of each row, shape (rows, width)."""
        parts = []
        if self.embed is not None:
            if columns is None:
                raise ModelError("a tower with columns got none", code="model-input")
            parts.append(self.embed(columns).flatten(1))
        if self.past is not None:
            if history is None or length is None:
                raise ModelError("a tower with histories needs history and length", code="model-input")
            real = is_real(history, length)
            rows = self.past(history[real])
            sums = rows.new_zeros(len(history), rows.shape[1]).index_add(0, real.nonzero()[:, 0], rows)
            parts.append(sums / real.sum(1, keepdim=True).clamp(min=1))
        return F.normalize(self.head(self.hidden(torch.cat(parts, 1))), dim=1)


class TwoTower(nn.Module):
    """Retrieval by vectors: one tower for users, one for items; the score is the cosine over a temperature.

    Covington et al., "Deep Neural Networks for YouTube Recommendations", 2016, and Yi et al.,
    "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019. Train it with
    :func:`in_batch_step`; then search the vectors of all items with :class:`sparkdl.nn.TopK`.

    Args:
        users: number of values of each column of a user, ``None`` for 64-bit ids of any number; may be empty
            with ``history``.
        items: likewise of an item. The first column is the item's id.
        embedding: width of each column's embedding.
        hidden: widths of each tower's hidden layers.
        width: of the vectors of users and items.
        history: whether the user's side has past items: their mean, from the table of the items' first
            column, which both towers share.
        temperature: by which cosines are divided.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        item: (rows, len(items)), integers.
        user: (rows, len(users)), integers; left out if there are no columns.
        history: (rows, size), past items, filled up at the end; left out without histories.
        length: (rows,), how many are past items; likewise.
        output: (rows,), the score of each pair.

    Attributes:
        user_tower: from ``user``, ``history`` and ``length`` to vectors of length 1.
        item_tower: from ``item`` to vectors of length 1.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if a tensor is missing or has another shape.
    """

    def __init__(
        self,
        users: Sequence[Cardinality],
        items: Sequence[Cardinality],
        embedding: int = 32,
        hidden: Sequence[int] = (64,),
        width: int = 32,
        history: bool = False,
        temperature: float = 0.05,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.users, self.items, self.hidden = tuple(users), tuple(items), tuple(hidden)
        name = type(self).__name__
        check_cardinalities(name, variables, users=self.users, items=self.items)
        check_sizes(name, embedding=embedding, hidden=self.hidden, width=width)
        if not self.items or not (self.users or history):
            raise ConfigError(f"{name}: users={users!r}, items={items!r}: expected columns on both sides")
        if not 0 < temperature < float("inf"):
            raise ConfigError(f"{name}: temperature={temperature!r}: expected a positive number")
        self.embedding, self.width, self.history, self.temperature = embedding, width, history, temperature
        self.variables = None if variables is None else dict(variables)
        embed = FieldEmbedding(self.items, embedding, 0.05, variables)
        self.item_tower = Tower(embed, None, (embedding * len(self.items), *self.hidden, width))
        # The seeds of the users' columns come after those of the items.
        after = seeds_after(variables, len(self.items))
        own = FieldEmbedding(self.users, embedding, 0.05, after) if self.users else None
        widths = (embedding * (len(self.users) + history), *self.hidden, width)
        self.user_tower = Tower(own, embed.tables[0] if history else None, widths)

    def forward(
        self,
        item: Tensor,
        user: Tensor | None = None,
        history: Tensor | None = None,
        length: Tensor | None = None,
    ) -> Tensor:
        """Return the score of each pair."""
        users, items = self.user_tower(user, history, length), self.item_tower(item)
        score: Tensor = (users * items).sum(1) / self.temperature
        return score


def in_batch_softmax(
    users: Tensor, items: Tensor, ids: Tensor, share: Tensor | None = None, temperature: float = 0.05
) -> Tensor:
    """Return the cross-entropy of each row's item among the items of all rows.

    Yi et al. 2019, section 4. A popular item is a negative more often than others. With ``share`` the
    logarithm of this share is taken off its score, so that the scores learned are those of a softmax over
    all items (log-Q correction). An item is not its own negative where several rows have it.

    Args:
        users: vectors of users, shape (rows, width).
        items: vectors of items, likewise.
        ids: of the items, shape (rows,).
        share: of all rows, those that have this item, shape (rows,); 0 leaves an item's score as it is.
        temperature: by which inner products are divided.

    Returns:
        Shape (rows,).
    """
    scores = users @ items.T / temperature
    if share is not None:
        scores = scores - torch.where(share > 0, share, 1.0).log()
    same = ids.unsqueeze(0) == ids.unsqueeze(1)
    own = torch.arange(len(ids), device=ids.device)
    same[own, own] = False
    return F.cross_entropy(scores.masked_fill(same, -torch.inf), own, reduction="none")


def in_batch_step(module: TwoTower, batch: Batch) -> dict[str, Any]:
    """Learn which item of a batch each user took: a ``step`` for a Trainer.

    The other items of a task's share of the batch are the negatives; nothing is drawn. Shares of few rows
    have few negatives: choose ``batch_size`` by the number of partitions.

    Args:
        module: the model.
        batch: inputs are a dict with what the model takes. The label, if there is one, is the share of all
            rows that have the row's item, of ``sparkdl.recsys.with_category(share=)``, for the log-Q
            correction.

    Returns:
        The loss of each row; in an evaluation also the score of its pair.

    Raises:
        ModelError: if the inputs are no dict, or have no ``item``.
    """
    inputs = batch.inputs
    if not isinstance(inputs, Mapping) or "item" not in inputs:
        raise ModelError(
            "in_batch_step needs features={'item': ..., 'user': ...} in the Dataset", code="model-input"
        )
    users = module.user_tower(inputs.get("user"), inputs.get("history"), inputs.get("length"))
    items = module.item_tower(inputs["item"])
    ids = inputs["item"][:, 0]
    result: dict[str, Any] = {"loss": in_batch_softmax(users, items, ids, batch.label, module.temperature)}
    if not module.training:
        result["output"] = (users * items).sum(1) / module.temperature
    return result
