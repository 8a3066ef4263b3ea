"""K-NRM: a neural ranking model with kernel pooling."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.arguments import check_sizes

_LEAST = 1e-10  # below this a kernel counts no term at all: its logarithm must stay finite
_SCALE = 0.01  # brings the logarithms to the order of one, so that tanh does not saturate at first


class KNRM(nn.Module):
    """Scores a document for a query by how many of its terms are how similar to each query term.

    Xiong et al., "End-to-End Neural Ad-hoc Ranking with Kernel Pooling", SIGIR 2017, equations 1 to 8. The
    cosines between the embeddings of query and document terms are counted by Gaussian kernels at fixed
    similarities: one narrow kernel for equal terms, at 1, and others spread evenly from -1 to 1.

    Args:
        terms: number of term ids, with 0, which stands for no term.
        embedding: width of the terms' embeddings; 300 in the paper.
        kernels: number of kernels, with that for equal terms; 11 in the paper.
        width: standard deviation of the kernels; 0.1 in the paper.
        exact_width: that of the kernel for equal terms; 0.001 in the paper.

    Shapes:
        query: (rows, query length), integers from 0 to below ``terms``; 0 fills up at any place.
        document: (rows, document length), likewise.
        output: (rows,), a score from -1 to 1; only the order of one query's documents means something.

    Parameters: embedding * terms + kernels + 1.

    Raises:
        ConfigError: if an argument cannot work.
        IndexError: from ``forward``, if a term is out of range.
    """

    centres: Tensor
    widths: Tensor

    def __init__(
        self,
        terms: int,
        embedding: int = 300,
        kernels: int = 11,
        width: float = 0.1,
        exact_width: float = 0.001,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, terms=terms, embedding=embedding)
        check_sizes(name, least=2, kernels=kernels)
        for argument, value in (("width", width), ("exact_width", exact_width)):
            if value <= 0:
                raise ConfigError(f"{name}: {argument}={value!r}: expected a positive number")
        self.terms, self.embedding, self.kernels = terms, embedding, kernels
        self.width, self.exact_width = width, exact_width
        self.embed = nn.Embedding(terms, embedding, padding_idx=0)
        step = 2 / (kernels - 1)
        centres = [1.0] + [1 - step * (k + 0.5) for k in range(kernels - 1)]
        self.register_buffer("centres", torch.tensor(centres))
        self.register_buffer("widths", torch.tensor([exact_width] + [width] * (kernels - 1)))
        self.head = nn.Linear(kernels, 1)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        """Return the score of each query and document."""
        terms = F.normalize(self.embed(query), dim=2)
        cosines = terms @ F.normalize(self.embed(document), dim=2).transpose(1, 2)
        distances = (cosines.unsqueeze(3) - self.centres) / self.widths
        counts = torch.exp(-0.5 * distances.square()) * (document != 0)[:, None, :, None]
        logarithms = counts.sum(2).clamp(min=_LEAST).log() * (query != 0).unsqueeze(2)
        features = _SCALE * logarithms.sum(1)
        return torch.tanh(self.head(features)).squeeze(1)


def pairwise_step(module: nn.Module, batch: Batch) -> dict[str, Any]:
    """Learn to score the better of two documents higher, by at least 1: a ``step`` for a Trainer.

    The hinge loss of K-NRM's equation 9, max(0, 1 - better + worse), for any module that is called with
    a query and a document.

    Args:
        module: gives one score per row.
        batch: inputs are a dict with ``query``, ``better`` and ``worse``, a document each.

    Returns:
        The loss of each row, and the difference of the two scores as output.

    Raises:
        ModelError: if the inputs are something else.
    """
    if not isinstance(batch.inputs, dict) or set(batch.inputs) != {"query", "better", "worse"}:
        raise ModelError(
            "pairwise_step needs features={'query': ..., 'better': ..., 'worse': ...} in the Dataset",
            code="model-input",
        )
    query = batch.inputs["query"]
    better, worse = module(query, batch.inputs["better"]), module(query, batch.inputs["worse"])
    return {"loss": (1 - better + worse).relu(), "output": better - worse}
