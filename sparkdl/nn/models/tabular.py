"""A perceptron over the columns of a table: categories and numbers, as TabularEncoder makes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.mlp import ACTIVATIONS, ScaledOutputs, check_layers
from sparkdl.nn.models.parts import perceptron

_WIDEST = 50


class Tabular(ScaledOutputs):
    """Embeddings of categories and numbers in pieces, through fully connected layers.

    A category with up to ``one_hot`` values enters as 0 and 1, of which number 0 (rare and unseen values) has
    none; one with more as a vector, of :func:`embedding_width` values. A number enters as it is, up to
    ``limit``, and with knots also by pieces: the share of each stretch between two knots that lies below it,
    so that the first layer bends where the values are (Gorishniy et al., "On Embeddings for Numerical
    Features in Tabular Deep Learning", 2022, section 3.2).

    :class:`sparkdl.ml.TorchClassifier` and :class:`sparkdl.ml.TorchRegressor` make one for the columns of a
    table.

    Args:
        cardinalities: number of values of each category.
        numbers: number of numeric columns.
        outputs: number of values to give.
        knots: of each number, increasing; none for those that enter as they are.
        hidden: sizes of the hidden layers; may be empty.
        activation: after each hidden layer: ``"relu"``, ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"sigmoid"``.
        dropout: share of each hidden layer's values that training sets to zero.
        one_hot: most values of a category that enters as 0 and 1.
        limit: numbers further from 0 are set to it; ``None`` for none.

    Shapes:
        categories: (rows, len(cardinalities)), integers; those of column c from 0 to below its cardinality;
            left out if there are none.
        numbers: (rows, numbers), float, about zero mean and unit deviation; left out if there are none.
        output: (rows, outputs).

    Attributes:
        output_mean: what is added to each output, after
        output_scale: what it is multiplied by; zeros and ones unless set by :meth:`scale_outputs`.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if categories or numbers have another shape.
        IndexError: from ``forward``, if the number of a category is out of range.
    """

    hot_column: Tensor
    hot_value: Tensor
    piece_column: Tensor
    piece_start: Tensor
    piece_width: Tensor

    def __init__(
        self,
        cardinalities: Sequence[int] = (),
        numbers: int = 0,
        outputs: int = 1,
        knots: Sequence[Sequence[float]] = (),
        hidden: Sequence[int] = (128, 128),
        activation: str = "relu",
        dropout: float = 0.1,
        one_hot: int = 8,
        limit: float | None = 5.0,
    ) -> None:
        super().__init__()
        self.cardinalities, self.hidden = tuple(cardinalities), tuple(hidden)
        self.numbers, self.outputs, self.one_hot = numbers, outputs, one_hot
        self.activation, self.dropout, self.limit = activation, dropout, limit
        self.knots = tuple(tuple(each) for each in knots)
        self._check()
        hot = [c for c, size in enumerate(self.cardinalities) if size <= one_hot]
        self._embedded = [c for c, size in enumerate(self.cardinalities) if size > one_hot]
        pairs = [(c, value) for c in hot for value in range(1, self.cardinalities[c])]
        self._buffer("hot_column", [c for c, _ in pairs], torch.int64)
        self._buffer("hot_value", [value for _, value in pairs], torch.int64)
        sizes = [self.cardinalities[c] for c in self._embedded]
        self.tables = nn.ModuleList(nn.Embedding(size, embedding_width(size)) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=embedding_width(len(table.weight)) ** -0.5)  # type: ignore
            with torch.no_grad():
                table.weight[0].zero_()  # type: ignore[index]  # unseen values, as long as none was rare
        self._buffer("piece_column", [n for n, each in enumerate(self.knots) for _ in each[1:]], torch.int64)
        starts = list(chain.from_iterable(each[:-1] for each in self.knots))
        ends = list(chain.from_iterable(each[1:] for each in self.knots))
        self._buffer("piece_start", starts, torch.float32)
        widths = [end - start for start, end in zip(starts, ends, strict=True)]
        self._buffer("piece_width", widths, torch.float32)
        self._begin_unscaled(outputs)
        width = len(pairs) + sum(map(embedding_width, sizes)) + numbers + len(widths)
        layers = perceptron((width, *self.hidden), dropout, ACTIVATIONS[activation])
        self.layers = nn.Sequential(*layers, nn.Linear((width, *self.hidden)[-1], outputs))

    def _check(self) -> None:
        check_sizes("Tabular", cardinalities=self.cardinalities, hidden=self.hidden, outputs=self.outputs)
        check_sizes("Tabular", least=0, numbers=self.numbers, one_hot=self.one_hot)
        check_layers("Tabular", self.activation, self.dropout, self.limit)
        if not self.cardinalities and not self.numbers:
            raise ConfigError("Tabular: cardinalities=() and numbers=0: expected at least one column")
        if len(self.knots) not in (0, self.numbers):
            raise ConfigError(f"Tabular: {len(self.knots)} lists of knots for {self.numbers} numbers")
        for n, each in enumerate(self.knots):
            if any(not end > start for start, end in pairwise(each)):
                raise ConfigError(f"Tabular: knots[{n}]={each!r:.80}: expected increasing numbers")

    def _buffer(self, name: str, values: Sequence[float], dtype: torch.dtype) -> None:
        """Hold what follows from the arguments: it moves with the module, and is not saved."""
        self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)

    def forward(self, *columns: Tensor) -> Tensor:
        """Return the outputs of each row, of its categories and its numbers, as far as there are such."""
        wanted = [name for name in ("cardinalities", "numbers") if getattr(self, name)]
        if len(columns) != len(wanted):
            raise ModelError(
                f"Tabular got {len(columns)} inputs; expected {len(wanted)}, as {' and '.join(wanted)} say",
                code="model-input",
            )
        parts = []
        if self.cardinalities:
            parts += self._categories(columns[0])
        if self.numbers:
            parts += self._numbers(columns[-1])
        return self._scaled(self.layers(torch.cat(parts, 1)))

    def _categories(self, categories: Tensor) -> list[Tensor]:
        if categories.dim() != 2 or categories.shape[1] != len(self.cardinalities):
            raise ModelError(
                f"categories has shape {tuple(categories.shape)}; expected (rows, "
                f"{len(self.cardinalities)}): "
                "one number for each of the cardinalities",
                code="model-input",
            )
        parts = [table(categories[:, c]) for c, table in zip(self._embedded, self.tables, strict=True)]
        if len(self.hot_column):
            chosen = categories[:, self.hot_column]
            if not torch.compiler.is_compiling():  # an export knows no values
                self._check_hot(chosen)
            parts.append((chosen == self.hot_value).to(self.output_mean.dtype))
        return parts

    def _check_hot(self, chosen: Tensor) -> None:
        """Check that values are in range, as a table of vectors does: others would be unseen ones."""
        sizes = torch.tensor(self.cardinalities, device=chosen.device)[self.hot_column]
        wrong = (chosen < 0) | (chosen >= sizes)
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            raise IndexError(
                f"categories[{row}, {int(self.hot_column[place])}] is {int(chosen[row, place])}; expected a "
                f"number from 0 to {int(sizes[place]) - 1}, as cardinalities say"
            )

    def _numbers(self, numbers: Tensor) -> list[Tensor]:
        if numbers.dim() != 2 or numbers.shape[1] != self.numbers:
            raise ModelError(
                f"numbers has shape {tuple(numbers.shape)}; expected (rows, {self.numbers})",
                code="model-input",
            )
        numbers = numbers.to(self.output_mean.dtype)
        parts = [numbers if self.limit is None else numbers.clamp(-self.limit, self.limit)]
        if len(self.piece_column):
            pieces = (numbers[:, self.piece_column] - self.piece_start) / self.piece_width
            parts.append(pieces.clamp(0, 1))
        return parts


def embedding_width(cardinality: int) -> int:
    """Return how many values the vector of a category has: 1.6 times its cardinality to 0.56, up to 50."""
    width: float = 1.6 * cardinality**0.56
    return min(_WIDEST, max(1, round(width)))
