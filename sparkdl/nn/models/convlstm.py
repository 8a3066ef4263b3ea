"""ConvLSTM: forecasts the next images of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_sizes

State = tuple[Tensor, Tensor]
"""Hidden state and cell, each (rows, hidden, height, width)."""


class ConvLSTMCell(nn.Module):
    """One step of an LSTM whose states are images.

    Shi et al., "Convolutional LSTM Network: A Machine Learning Approach for Precipitation Nowcasting", NIPS
    2015, equation 3. The peephole weights are one per channel: that is what the parameter counts of the
    paper's table 1 say, and it lets a network see images of any size.

    ``inputs`` and ``hidden`` are channels, 0 inputs for a cell without any; ``kernel`` is an odd number.
    """

    def __init__(self, inputs: int, hidden: int, kernel: int = 5) -> None:
        super().__init__()
        check_sizes("ConvLSTMCell", hidden=hidden, kernel=kernel)
        if inputs < 0 or kernel % 2 == 0:
            raise ConfigError(
                f"ConvLSTMCell: inputs={inputs}, kernel={kernel}: expected inputs from 0 and an odd kernel"
            )
        self.inputs, self.hidden, self.kernel = inputs, hidden, kernel
        self.gates = nn.Conv2d(inputs + hidden, 4 * hidden, kernel, padding=kernel // 2)
        self.peephole = nn.Parameter(torch.zeros(3, hidden, 1, 1))
        with torch.no_grad():  # to remember at first, as is usual for LSTMs
            assert self.gates.bias is not None
            self.gates.bias[hidden : 2 * hidden] = 1.0

    def forward(self, x: Tensor | None, state: State) -> State:
        """Return the state after ``x``, (rows, inputs, height, width); ``None`` for a cell without input."""
        hidden, cell = state
        given = hidden if x is None else torch.cat([x, hidden], 1)
        enter, forget, new, leave = self.gates(given).chunk(4, 1)
        enter = torch.sigmoid(enter + self.peephole[0] * cell)
        forget = torch.sigmoid(forget + self.peephole[1] * cell)
        cell = forget * cell + enter * torch.tanh(new)
        leave = torch.sigmoid(leave + self.peephole[2] * cell)
        return leave * torch.tanh(cell), cell


class ConvLSTM(nn.Module):
    """Forecasts images from those before: an encoding and a forecasting network of ConvLSTM cells.

    Shi et al., NIPS 2015, figure 3. The encoder reads the past; the forecaster starts in its states and
    unrolls without input; a 1x1 convolution over the states of all its layers gives the images. With
    ``channels=1, hidden=(128, 128), kernel=5, patch=4`` it has the 10,042,896 parameters of the paper's
    table 1, and the counts of the others likewise.

    Args:
        channels: channels of an image.
        hidden: channels of each layer's states.
        steps: images to forecast.
        kernel: height and width of the convolutions, an odd number.
        patch: side of the squares of pixels that become the channels of one, to save work.

    Shapes:
        input: (rows, time, channels, height, width), float from 0 to 1; ``patch`` divides height and width.
        output: (rows, steps, channels, height, width), logits: ``sigmoid`` of them are the images, and
            ``binary_cross_entropy_with_logits`` is the paper's loss.

    Raises:
        ConfigError: if a size cannot work.
    """

    def __init__(
        self,
        channels: int = 1,
        hidden: Sequence[int] = (64, 64),
        steps: int = 10,
        kernel: int = 5,
        patch: int = 4,
    ) -> None:
        super().__init__()
        check_sizes("ConvLSTM", channels=channels, hidden=hidden, steps=steps, kernel=kernel, patch=patch)
        if not hidden:
            raise ConfigError("ConvLSTM: hidden=(): expected the channels of at least one layer")
        self.channels, self.hidden, self.steps = channels, tuple(hidden), steps
        self.kernel, self.patch = kernel, patch
        inside = channels * patch * patch
        self.encoder = nn.ModuleList(
            ConvLSTMCell(before, width, kernel)
            for before, width in zip((inside, *hidden), hidden, strict=False)
        )
        self.forecaster = nn.ModuleList(
            ConvLSTMCell(before, width, kernel) for before, width in zip((0, *hidden), hidden, strict=False)
        )
        self.head = nn.Conv2d(sum(hidden), inside, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the images that follow."""
        x = nnf.pixel_unshuffle(images, self.patch)
        empty = [x.new_zeros(len(x), width, *x.shape[-2:]) for width in self.hidden]
        states: list[State] = [(zeros, zeros) for zeros in empty]
        for image in x.unbind(1):
            states = _advance(self.encoder, image, states)
        forecasts = []
        for _ in range(self.steps):
            states = _advance(self.forecaster, None, states)
            forecasts.append(self.head(torch.cat([hidden for hidden, _ in states], 1)))
        return nnf.pixel_shuffle(torch.stack(forecasts, 1), self.patch)


def _advance(cells: nn.ModuleList, x: Tensor | None, states: list[State]) -> list[State]:
    """Move every layer one step on; each gets the hidden state of the one below."""
    after: list[State] = []
    for cell, state in zip(cells, states, strict=True):
        after.append(cell(x, state))
        x = after[-1][0]
    return after
