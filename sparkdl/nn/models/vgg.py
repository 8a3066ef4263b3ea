"""VGG networks: stages of 3 x 3 convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_choice, check_share, check_sizes

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions of each stage by the number of layers: configurations A, B, D and E."""


class VGG(nn.Module):
    """VGG with 11, 13, 16 or 19 layers, for images of any size that 32 divides.

    Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
    table 1, configurations A, B, D and E: 133, 133, 138 and 144 million parameters. The names in its
    ``features`` and ``classifier`` are torchvision's, whose weights for 224 x 224 pixels it loads.

    For images of 32 x 32 pixels, ``VGG(16, classes=10, size=32, hidden=(), batch_norm=True)`` is the usual
    network: the last map has one pixel, and one linear layer follows; 14.7 million parameters.

    Args:
        layers: 11, 13, 16 or 19.
        classes: number of classes.
        size: height and width of the images, a multiple of 32.
        channels: channels of the images.
        width: channels of the first stage; the others have 2, 4, 8 and 8 times as many.
        hidden: sizes of the fully connected layers before the last.
        batch_norm: whether each convolution is followed by batch normalisation (Ioffe, Szegedy, ICML
            2015), without which training from scratch is slow to begin.
        dropout: share of each hidden layer's values that training sets to zero.

    Shapes:
        input: (rows, channels, size, size), or flat (rows, channels * size * size); float, about zero mean.
        output: (rows, classes), logits.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        layers: int = 16,
        classes: int = 1000,
        size: int = 224,
        channels: int = 3,
        width: int = 64,
        hidden: Sequence[int] = (4096, 4096),
        batch_norm: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_choice("VGG", "layers", layers, tuple(_CONVOLUTIONS))
        check_sizes("VGG", classes=classes, size=size, channels=channels, width=width, hidden=hidden)
        check_share("VGG", dropout=dropout)
        if size % 32:
            raise ConfigError(f"VGG: size={size}: expected a multiple of 32, which five poolings halve")
        self.layers, self.classes, self.size, self.channels = layers, classes, size, channels
        self.width, self.hidden, self.batch_norm, self.dropout = width, tuple(hidden), batch_norm, dropout
        self.features = nn.Sequential(*_stages(channels, width, _CONVOLUTIONS[layers], batch_norm))
        sizes = [8 * width * (size // 32) ** 2, *hidden]
        parts: list[nn.Module] = []
        for before, after in pairwise(sizes):
            parts += [nn.Linear(before, after), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        self.classifier = nn.Sequential(*parts, nn.Linear(sizes[-1], classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of each class."""
        x = image.reshape(-1, self.channels, self.size, self.size)
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def _stages(channels: int, width: int, counts: Sequence[int], batch_norm: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    before = channels
    for factor, count in zip((1, 2, 4, 8, 8), counts, strict=True):
        for _ in range(count):
            layers.append(nn.Conv2d(before, factor * width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(factor * width))
            layers.append(nn.ReLU(inplace=True))
            before = factor * width
        layers.append(nn.MaxPool2d(2))
    return layers
