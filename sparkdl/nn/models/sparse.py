"""Layers for rows with few values among many features, such as hashed words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.models.arguments import check_share, check_sizes
from sparkdl.nn.models.mlp import ScaledOutputs
from sparkdl.nn.models.parts import perceptron


class SparseLinear(nn.Module):
    """A linear layer over a sparse vector: ``nn.Linear`` that reads only the weights of values other than 0.

    Its input is what a column of ML vectors with ``dtype="sparse"`` becomes. Gradients are row-sparse: with
    an optimizer that leaves other rows as they are (``SGD`` without momentum, ``Adagrad``, ``SparseAdam``),
    only the rows that a batch has touched travel between executors.

    Args:
        inputs: number of features: the size of the vectors.
        outputs: number of values to give.
        bias: whether to add one.

    Shapes:
        indices: (rows, longest), integers from 0 to below ``inputs``.
        values: (rows, longest), float; 0 where a row has fewer.
        output: (rows, outputs).

    Parameters: (inputs + 1) * outputs. ``table.weight`` has shape (inputs, outputs), the other way round than
    that of ``nn.Linear``; both start from the same distribution.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if values are missing or have another shape than indices.
        IndexError: from ``forward``, if an index is out of range.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        check_sizes(type(self).__name__, inputs=inputs, outputs=outputs)
        self.inputs, self.outputs = inputs, outputs
        self.table = nn.EmbeddingBag(inputs, outputs, mode="sum", sparse=True)
        bound = inputs**-0.5
        nn.init.uniform_(self.table.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound)) if bias else None

    def forward(self, indices: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the weighted sums of each row."""
        if values is None or indices.dim() != 2 or values.shape != indices.shape:
            given = "none" if values is None else f"shape {tuple(values.shape)}"
            raise ModelError(
                f"{type(self).__name__} takes indices and values of one shape (rows, longest), got indices "
                f"of shape {tuple(indices.shape)} and values: {given}. A column of ML vectors gives both as "
                "Column(name, dtype='sparse') or with inputTypes=['sparse']",
                code="model-input",
            )
        found: Tensor
        if torch.compiler.is_compiling():  # an export wants fixed shapes
            found = self.table(indices, per_sample_weights=values.to(self.table.weight.dtype))
        else:
            found = self._of_present(indices, values.to(self.table.weight.dtype))
        return found if self.bias is None else found + self.bias

    def _of_present(self, indices: Tensor, values: Tensor) -> Tensor:
        """Leave out what fills rows up: the row of index 0 would count as touched."""
        present = values != 0
        counts = present.sum(1)
        found: Tensor = self.table(indices[present], counts.cumsum(0) - counts, values[present])
        return found


class SparseMLP(ScaledOutputs):
    """Fully connected layers over a sparse vector, the first a :class:`SparseLinear`.

    Args:
        inputs: number of features: the size of the vectors.
        outputs: number of values to give.
        hidden: sizes of the hidden layers; with none it is a linear model.
        dropout: share of each hidden layer's values that training sets to zero.

    Shapes:
        indices, values: as of :class:`SparseLinear`.
        output: (rows, outputs).

    Attributes:
        output_mean: what is added to each output, after
        output_scale: what it is multiplied by; zeros and ones unless set by :meth:`scale_outputs`.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (64,), dropout: float = 0.0
    ) -> None:
        super().__init__()
        name, sizes = type(self).__name__, tuple(hidden)
        check_sizes(name, inputs=inputs, outputs=outputs)
        check_sizes(name, hidden=sizes)
        check_share(name, dropout=dropout)
        self.first = SparseLinear(inputs, (*sizes, outputs)[0])
        rest: list[nn.Module] = []
        if sizes:
            rest += [nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
            rest += [*perceptron(sizes, dropout), nn.Linear(sizes[-1], outputs)]
        self.rest = nn.Sequential(*rest)
        self._begin_unscaled(outputs)

    def forward(self, indices: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the outputs of each row."""
        return self._scaled(self.rest(self.first(indices, values)))
