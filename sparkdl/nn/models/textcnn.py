"""Convolutions over the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share, check_sizes


class TextCNN(nn.Module):
    """Classifies texts by the strongest response of filters over a few neighbouring tokens.

    Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014, section 2, with the sizes of
    section 3.1 as defaults: CNN-rand, whose embeddings are learned. Number 0 is padding, as
    :class:`sparkdl.ml.TextIndexer` writes it; its embedding stays zero. Filters see each text to its end and
    padding behind it, however far a batch is filled up.

    Args:
        vocabulary: number of different tokens, padding included.
        classes: number of classes.
        embedding: size of a token's embedding.
        filters: number of filters of each width.
        widths: how many tokens a filter sees, one entry for each kind.
        dropout: share of the filters' responses that training sets to zero.

    Shapes:
        input: (rows, tokens), integers from 0 to below ``vocabulary``.
        output: (rows, classes), logits.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        embedding: int = 300,
        filters: int = 100,
        widths: Sequence[int] = (3, 4, 5),
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_sizes("TextCNN", vocabulary=vocabulary, classes=classes, embedding=embedding, filters=filters)
        check_share("TextCNN", dropout=dropout)
        if not widths:
            raise ConfigError("TextCNN: widths=(): expected at least one width of filters")
        check_sizes("TextCNN", widths=widths)
        self.vocabulary, self.classes, self.embedding = vocabulary, classes, embedding
        self.filters, self.widths, self.dropout = filters, tuple(widths), dropout
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in widths)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(len(widths) * filters, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each class."""
        x = self.embed(nnf.pad(tokens, (0, max(self.widths)))).transpose(1, 2)
        strongest = [torch.relu(convolution(x)).amax(2) for convolution in self.convolutions]
        logits: Tensor = self.head(self.drop(torch.cat(strongest, 1)))
        return logits
