"""GRU4Rec: the next item of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.arguments import check_choice, check_share, check_sizes


class GRU4Rec(nn.Module):
    """A gated recurrent unit over the items of a session, which scores every item as the next one.

    Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016, section 3.
    Two things differ: items enter through an embedding instead of one-hot, and a row is a whole session,
    of which :func:`session_step` learns every step, instead of one step of parallel sessions.

    Args:
        items: number of items.
        embedding: width of the items' embeddings.
        hidden: units of each recurrent layer; 100 in the paper.
        layers: number of recurrent layers; 1 in the paper.
        dropout: share of the recurrent layers' outputs that training sets to zero.

    Shapes:
        session: (rows, length), integers from 0 to below ``items``, oldest first, filled up at the end
            with any id.
        length: (rows,), integers from 0 to the width of ``session``: how many items are real. Without any,
            scores are those before a session's first item.
        output: (rows, items), a score for each item; softmax makes them probabilities after training
            with cross-entropy, otherwise only their order means something.

    Parameters, with E = ``embedding`` and H = ``hidden``: E items, 3 H (E + H + 2) for the first layer,
    3 H (2 H + 2) for each further one, (H + 1) items.

    Raises:
        ConfigError: if an argument cannot work.
        IndexError: from ``forward``, if an item is out of range.
    """

    def __init__(
        self, items: int, embedding: int = 64, hidden: int = 100, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, items=items, embedding=embedding, hidden=hidden, layers=layers)
        check_share(name, dropout=dropout)
        self.items, self.embedding, self.hidden, self.layers = items, embedding, hidden, layers
        self.dropout = dropout
        self.embed = nn.Embedding(items, embedding)
        nn.init.normal_(self.embed.weight, std=0.1)
        between = dropout if layers > 1 else 0.0
        self.gru = nn.GRU(embedding, hidden, layers, batch_first=True, dropout=between)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, items)

    def forward(self, session: Tensor, length: Tensor) -> Tensor:
        """Return each item's score as the one after the session's last."""
        states = self.states(session)
        last = states[torch.arange(len(states), device=states.device), (length - 1).clamp(min=0)]
        scores: Tensor = self.head(last * (length > 0).unsqueeze(1))
        return scores

    def states(self, session: Tensor) -> Tensor:
        """Return the state after each item, shape (rows, length, hidden)."""
        states, _ = self.gru(self.embed(session))
        dropped: Tensor = self.drop(states)
        return dropped


def bpr(scores: Tensor, wrong: Tensor) -> Tensor:
    """Return the BPR loss of each position: the right item should score above the wrong ones.

    Hidasi et al. 2016, section 3.2.2, after Rendle et al., "BPR: Bayesian Personalized Ranking", 2009.

    Args:
        scores: shape (positions, candidates), the right item's score first.
        wrong: whether a candidate is wrong, bool, same shape; the others do not count.
    """
    return _mean_over(-F.logsigmoid(scores[:, :1] - scores), wrong)


def top1(scores: Tensor, wrong: Tensor) -> Tensor:
    """Return the TOP1 loss of each position: wrong items should score below the right one, and near zero.

    Hidasi et al. 2016, section 3.2.2. Arguments as in :func:`bpr`.
    """
    return _mean_over((scores - scores[:, :1]).sigmoid() + scores.square().sigmoid(), wrong)


def sampled_softmax(scores: Tensor, wrong: Tensor) -> Tensor:
    """Return the cross-entropy of each position among its candidates. Arguments as in :func:`bpr`."""
    right = torch.zeros_like(wrong)
    right[:, 0] = True
    among = scores.masked_fill(~(wrong | right), -torch.inf)
    return among.logsumexp(1) - scores[:, 0]


def _mean_over(losses: Tensor, wrong: Tensor) -> Tensor:
    return (losses * wrong).sum(1) / wrong.sum(1).clamp(min=1)


_SAMPLED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bpr": bpr,
    "top1": top1,
    "sampled_softmax": sampled_softmax,
}
_CROSS_ENTROPY = "cross_entropy"


def session_step(module: GRU4Rec, batch: Batch, loss: str = "top1") -> dict[str, Any]:
    """Learn every next item of the sessions: a ``step`` for a Trainer.

    For ``"bpr"``, ``"top1"`` and ``"sampled_softmax"`` an item is told apart from the items that other
    positions of a task's share of the batch lead to, as in section 3.2.1 of the paper: these are sampled
    by popularity, and nothing is computed for the rest. ``"cross_entropy"`` compares with all items.

    Args:
        module: the model.
        batch: inputs are a dict with ``session`` and ``length`` as the model takes them; the label is the
            item after the session, shape (rows,), or there is none.
        loss: one of ``"bpr"``, ``"top1"``, ``"sampled_softmax"``, ``"cross_entropy"``. To choose one, give
            the Trainer ``step=partial(session_step, loss=...)``.

    Returns:
        The loss of each row, the mean over its steps; in an evaluation also the output of the module.

    Raises:
        ConfigError: if there is no such loss.
        ModelError: if the inputs are no dict, or a row has nothing to predict, or fewer items than ``length``
            says.
    """
    check_choice("session_step", "loss", loss, (*_SAMPLED, _CROSS_ENTROPY))
    if not isinstance(batch.inputs, dict) or set(batch.inputs) != {"session", "length"}:
        raise ModelError(
            "session_step needs features={'session': ..., 'length': ...} in the Dataset", code="model-input"
        )
    session, length = batch.inputs["session"], batch.inputs["length"]
    if (length > session.shape[1]).any():  # the first item would come after the last one
        raise ModelError(
            f"length is {int(length.max())}, and a session has {session.shape[1]} items: expected the number "
            "of those that are there, as least(length, size(session)) gives it",
            code="model-input",
        )
    target, real = next_items(session, length, batch.label)
    if not real.any(1).all():
        raise ModelError(
            "a session of one item has nothing to predict: give what comes next as label, or leave it out",
            code="model-input",
        )
    states, right = module.states(session)[real], target[real]
    if loss == _CROSS_ENTROPY:
        losses = F.cross_entropy(module.head(states), right, reduction="none")
    else:
        candidates = torch.unique(right)
        scores = F.linear(states, module.head.weight[candidates], module.head.bias[candidates])
        wrong = candidates != right.unsqueeze(1)
        own = (states * module.head.weight[right]).sum(1) + module.head.bias[right]
        no = torch.zeros(len(right), 1, dtype=torch.bool, device=wrong.device)
        losses = _SAMPLED[loss](torch.cat([own.unsqueeze(1), scores], 1), torch.cat([no, wrong], 1))
    sums = losses.new_zeros(real.shape).masked_scatter(real, losses).sum(1)
    result: dict[str, Any] = {"loss": sums / real.sum(1)}
    if not module.training:
        result["output"] = module(session, length)
    return result


def next_items(session: Tensor, length: Tensor, label: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the item that comes after each one, and whether there is one; of the shape of ``session``.

    ``label`` is the item after each session, if it is known.
    """
    position = torch.arange(session.shape[1], device=session.device)
    target = session.roll(-1, 1)
    last = length.unsqueeze(1) - 1
    if label is None:
        return target, position < last
    return target.scatter(1, last.clamp(min=0), label.unsqueeze(1)), position <= last
