"""Recurrent networks over the tokens of a text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from sparkdl.nn.models.arguments import check_choice, check_share, check_sizes

_CELLS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentClassifier(nn.Module):
    """Classifies texts by the last state of an LSTM or GRU.

    Hochreiter, Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers et al., 2000; Cho et
    al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014, for the GRU. Number 0 is
    padding: what follows the last other token of a row is not read.

    Args:
        vocabulary: number of different tokens, padding included.
        classes: number of classes.
        embedding: size of a token's embedding.
        hidden: size of a layer's state, in each direction.
        cell: ``"lstm"`` or ``"gru"``.
        layers: recurrent layers, one above the other.
        bidirectional: whether a second network reads the text from its end.
        dropout: share of the values between layers, and before the last, that training sets to zero.

    Shapes:
        input: (rows, tokens), integers from 0 to below ``vocabulary``, padded at the end.
        output: (rows, classes), logits.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        embedding: int = 128,
        hidden: int = 128,
        cell: str = "lstm",
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "classes": classes, "embedding": embedding, "hidden": hidden}
        check_sizes("RecurrentClassifier", **sizes, layers=layers)
        check_choice("RecurrentClassifier", "cell", cell, tuple(_CELLS))
        check_share("RecurrentClassifier", dropout=dropout)
        self.vocabulary, self.classes, self.embedding, self.hidden = vocabulary, classes, embedding, hidden
        self.cell, self.layers, self.bidirectional, self.dropout = cell, layers, bidirectional, dropout
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.recurrent = _CELLS[cell](
            embedding,
            hidden,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear((2 if bidirectional else 1) * hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each class."""
        packed = pack_padded_sequence(
            self.embed(tokens), lengths(tokens).cpu(), batch_first=True, enforce_sorted=False
        )
        _, state = self.recurrent(packed)
        last = state[0] if self.cell == "lstm" else state
        # The last layer's states, forward and backward, are the last rows.
        x = torch.cat([last[-2], last[-1]], 1) if self.bidirectional else last[-1]
        logits: Tensor = self.head(self.drop(x))
        return logits


def lengths(tokens: Tensor) -> Tensor:
    """Return the number of tokens of each row up to the last that is no padding, 0; 1 for an empty row."""
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return ((tokens != 0) * positions).amax(1).clamp(min=1)
