"""A Transformer encoder over the tokens of a text."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share, check_sizes


class TransformerClassifier(nn.Module):
    """Classifies texts by the mean over the tokens that an encoder gives.

    Vaswani et al., "Attention Is All You Need", NIPS 2017, sections 3.1 to 3.5: embeddings times the root of
    their size, sinusoidal positions, and layers of self-attention and feed-forward networks. The defaults
    are small; the paper's base model has ``width=512, heads=8, layers=6, feed_forward=2048``, 18.9 million
    parameters without the embeddings. Number 0 is padding: no token attends to it, and it has no part in
    the mean.

    Args:
        vocabulary: number of different tokens, padding included.
        classes: number of classes.
        width: size of embeddings and layers; ``heads`` divides it, and it is even.
        heads: attention heads.
        layers: encoder layers.
        feed_forward: size of a layer's hidden values.
        dropout: share of the values that training sets to zero, where the paper does.
        norm_first: whether to normalise before attention and feed-forward network rather than after, which
            trains without a warm-up (Xiong et al., ICML 2020).

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
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
        feed_forward: int = 512,
        dropout: float = 0.1,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "classes": classes, "width": width, "heads": heads}
        check_sizes("TransformerClassifier", **sizes, layers=layers, feed_forward=feed_forward)
        check_share("TransformerClassifier", dropout=dropout)
        if width % heads or width % 2:
            raise ConfigError(
                f"TransformerClassifier: width={width}, heads={heads}: expected an even width that the "
                "number of heads divides"
            )
        self.vocabulary, self.classes, self.width, self.heads = vocabulary, classes, width, heads
        self.layers, self.feed_forward, self.dropout = layers, feed_forward, dropout
        self.norm_first = norm_first
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        with torch.no_grad():
            self.embed.weight[0].zero_()
        self.drop = nn.Dropout(dropout)
        # Layers of one's own for each: TransformerEncoder copies one, with the same initial weights.
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, feed_forward, dropout, batch_first=True, norm_first=norm_first
            )
            for _ in range(layers)
        )
        self.norm: nn.Module = nn.LayerNorm(width) if norm_first else nn.Identity()
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each class."""
        x = self.embed(tokens) * math.sqrt(self.width)
        x = self.drop(x + positions(tokens.shape[1], self.width).to(x))
        padding = tokens == 0
        ignored = padding.clone()
        ignored[:, 0] &= ~padding.all(1)  # a row of padding only would be the mean of nothing
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=ignored)
        kept = (~ignored).unsqueeze(2).to(x)
        logits: Tensor = self.head((self.norm(x) * kept).sum(1) / kept.sum(1))
        return logits


def positions(length: int, width: int) -> Tensor:
    """Return the sinusoidal position encoding of Vaswani et al., section 3.5, shape (length, width)."""
    steps = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([torch.sin(steps * rates), torch.cos(steps * rates)], 2).flatten(1)
