"""Sequence to sequence: an encoder, a decoder, and attention between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share, check_sizes
from sparkdl.nn.models.recurrent import lengths


class Seq2Seq(nn.Module):
    """Recurrent encoder and decoder with global attention.

    Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine Translation", EMNLP 2015,
    section 3.1: the decoder's state is compared with all states of the encoder by the score ``general``; the
    mean of these, so weighted, and the state give the next token. Without input feeding, so that in
    training a whole target is decoded at once. As in Bahdanau et al., ICLR 2015, the encoder reads the
    source in both directions, and cells are GRUs.

    In training the decoder gets the target shifted by one (teacher forcing): ``model(source, target)``
    predicts each token of ``target`` from those before it. :meth:`decode` has no target and goes on from its
    own best guess. Number 0 is padding; ``start`` comes before a target and need not be in it.

    Args:
        source_vocabulary: number of different tokens of sources, padding included.
        target_vocabulary: of targets, padding and ``start`` included.
        embedding: size of a token's embedding.
        hidden: size of the decoder's state, an even number; each direction of the encoder has half of it.
        layers: recurrent layers of encoder and decoder.
        dropout: share of the values between layers, and before the last, that training sets to zero.
        start: number of the token that begins every target.

    Shapes:
        input: source (rows, source tokens) and target (rows, target tokens), integers, padded at the end.
        output: (rows, target tokens, target_vocabulary), logits; see :func:`sequence_loss`.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int = 128,
        hidden: int = 256,
        layers: int = 1,
        dropout: float = 0.0,
        start: int = 1,
    ) -> None:
        super().__init__()
        vocabularies = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        check_sizes("Seq2Seq", **vocabularies, embedding=embedding, hidden=hidden, layers=layers)
        check_share("Seq2Seq", dropout=dropout)
        if hidden % 2:
            raise ConfigError(f"Seq2Seq: hidden={hidden}: expected an even number, half for each direction")
        if not 0 <= start < target_vocabulary:
            raise ConfigError(f"Seq2Seq: start={start}: expected a token's number, below {target_vocabulary}")
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        self.embedding, self.hidden, self.layers = embedding, hidden, layers
        self.dropout, self.start = dropout, start
        between = dropout if layers > 1 else 0.0
        self.source_embed = nn.Embedding(source_vocabulary, embedding, padding_idx=0)
        self.target_embed = nn.Embedding(target_vocabulary, embedding, padding_idx=0)
        self.encoder = nn.GRU(
            embedding, hidden // 2, layers, batch_first=True, dropout=between, bidirectional=True
        )
        self.decoder = nn.GRU(embedding, hidden, layers, batch_first=True, dropout=between)
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, target_vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of each token of the target, given those before it."""
        memory, state = self._encode(source)
        shifted = nnf.pad(target[:, :-1], (1, 0), value=self.start)
        logits, _ = self._step(shifted, state, memory, _is_padding(source))
        return logits

    @torch.no_grad()
    def decode(self, source: Tensor, length: int, end: int | None = None) -> Tensor:
        """Return the tokens that follow from a source, each the likeliest after those before it.

        The module's mode is left as it is: call ``eval()`` first.

        Args:
            source: (rows, source tokens), integers.
            length: tokens to return.
            end: token after which a row holds padding only; ``None`` if there is no such token.

        Returns:
            (rows, length), int64.

        Raises:
            ConfigError: if ``length`` is not positive.
        """
        check_sizes("Seq2Seq.decode", length=length)
        memory, state = self._encode(source)
        token = torch.full((len(source), 1), self.start, device=source.device)
        done = torch.zeros(len(source), 1, dtype=torch.bool, device=source.device)
        tokens = []
        for _ in range(length):
            logits, state = self._step(token, state, memory, _is_padding(source))
            token = logits.argmax(2).masked_fill(done, 0)
            tokens.append(token)
            if end is not None:
                done = done | (token == end)
        return torch.cat(tokens, 1)

    def _encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states over the source, and the decoder's first state."""
        packed = pack_padded_sequence(
            self.source_embed(source), lengths(source).cpu(), batch_first=True, enforce_sorted=False
        )
        packed, state = self.encoder(packed)
        memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.shape[1])
        # (layers * 2, rows, hidden / 2) to (layers, rows, hidden): both directions side by side
        state = state.unflatten(0, (self.layers, 2)).transpose(1, 2).flatten(2)
        return memory, state.contiguous()

    def _step(self, tokens: Tensor, state: Tensor, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits after each of some tokens, and the state after the last."""
        x, state = self.decoder(self.target_embed(tokens), state)
        scores = x @ self.score(memory).transpose(1, 2)
        scores = scores.masked_fill(padding.unsqueeze(1), torch.finfo(scores.dtype).min)
        context = scores.softmax(2) @ memory
        attentional = torch.tanh(self.combine(torch.cat([context, x], 2)))
        return self.head(self.drop(attentional)), state


def _is_padding(source: Tensor) -> Tensor:
    """Return which tokens nothing attends to; of an empty source the first one stays."""
    padding = source == 0
    padding[:, 0] &= ~padding.all(1)
    return padding


def sequence_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over the tokens of each row that are no padding.

    Shapes:
        output: (rows, tokens, vocabulary), logits.
        target: (rows, tokens), integers; 0 is padding.
        loss: (rows,).
    """
    losses = nnf.cross_entropy(output.transpose(1, 2), target, ignore_index=0, reduction="none")
    return losses.sum(1) / (target != 0).sum(1).clamp(min=1)
