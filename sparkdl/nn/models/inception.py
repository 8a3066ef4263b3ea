"""GoogLeNet: convolutions of several sizes side by side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share, check_sizes

_MODULES: Mapping[str, tuple[int, int, int, int, int, int, int]] = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
"""Table 1 of the paper: channels in, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection."""


class GoogLeNet(nn.Module):
    """Inception-v1, the network that won ILSVRC 2014.

    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, table 1. With 1,000 classes it has 7.0
    million parameters and 13.4 million with the auxiliary classifiers, which are used in training only
    (section 5). The table's counts add up to this within half a percent, though single ones differ by up to
    8 %. The first layer is a plain convolution; the table's 2.7 K parameters are those of a separable one.

    Args:
        classes: number of classes.
        size: height and width of the images; at least 32, and at least 79 with ``auxiliary``.
        channels: channels of the images.
        auxiliary: whether to add the classifiers after modules 4a and 4d. In training mode the output is
            then a tuple of three, which :func:`googlenet_loss` takes.
        batch_norm: whether each convolution is followed by batch normalisation (Ioffe, Szegedy, ICML
            2015) and local response normalisation left out.
        dropout: share of the values before the last layer that training sets to zero.

    Shapes:
        input: (rows, channels, size, size), or flat (rows, channels * size * size); float, about zero mean.
        output: (rows, classes), logits; in training mode with ``auxiliary`` a tuple of three of these,
            the last layer's first.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        classes: int = 1000,
        size: int = 224,
        channels: int = 3,
        auxiliary: bool = False,
        batch_norm: bool = False,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        check_sizes("GoogLeNet", classes=classes, size=size, channels=channels)
        check_share("GoogLeNet", dropout=dropout)
        least = 79 if auxiliary else 32  # what the pooling of the auxiliary classifiers needs
        if size < least:
            raise ConfigError(f"GoogLeNet: size={size}, auxiliary={auxiliary}: expected at least {least}")
        self.classes, self.size, self.channels = classes, size, channels
        self.auxiliary, self.batch_norm, self.dropout = auxiliary, batch_norm, dropout
        self.stem = nn.Sequential(
            *_convolution(channels, 64, 7, batch_norm, stride=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            *_response_norm(batch_norm),
            *_convolution(64, 64, 1, batch_norm),
            *_convolution(64, 192, 3, batch_norm),
            *_response_norm(batch_norm),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.inceptions = nn.ModuleDict(
            {name: Inception(*widths, batch_norm=batch_norm) for name, widths in _MODULES.items()}
        )
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(1024, classes))
        self.auxiliaries = nn.ModuleDict()
        if auxiliary:
            pixels = ((_side(size) - 5) // 3 + 1) ** 2
            self.auxiliaries["4a"] = _auxiliary(512, pixels, classes, batch_norm)
            self.auxiliaries["4d"] = _auxiliary(528, pixels, classes, batch_norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return the logits of each class, with those of the auxiliary classifiers in training mode."""
        x = self.stem(image.reshape(-1, self.channels, self.size, self.size))
        sides = []
        for name, module in self.inceptions.items():
            if name in ("4a", "5a"):
                x = self.pool(x)
            x = module(x)
            if self.training and name in self.auxiliaries:
                sides.append(self.auxiliaries[name](x))
        logits: Tensor = self.head(x.mean((2, 3)))
        return (logits, sides[0], sides[1]) if sides else logits


class Inception(nn.Module):
    """Four branches over the same input: 1x1, 3x3 and 5x5 convolutions and a pooling (figure 2b).

    Arguments are the channels of the input, and of each convolution in the order of the paper's table 1. The
    output has those of the branches, one after the other: one + three + five + pool.
    """

    def __init__(
        self,
        before: int,
        one: int,
        reduce_three: int,
        three: int,
        reduce_five: int,
        five: int,
        pool: int,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.one = nn.Sequential(*_convolution(before, one, 1, batch_norm))
        self.three = nn.Sequential(
            *_convolution(before, reduce_three, 1, batch_norm),
            *_convolution(reduce_three, three, 3, batch_norm),
        )
        self.five = nn.Sequential(
            *_convolution(before, reduce_five, 1, batch_norm),
            *_convolution(reduce_five, five, 5, batch_norm),
        )
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), *_convolution(before, pool, 1, batch_norm)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the branches' channels, one after the other."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def googlenet_loss(output: Tensor | tuple[Tensor, Tensor, Tensor], label: Tensor) -> Tensor:
    """Return the cross-entropy of each row; auxiliary classifiers count 0.3 (section 5 of the paper)."""
    if isinstance(output, Tensor):
        return nnf.cross_entropy(output, label, reduction="none")
    last, *sides = (nnf.cross_entropy(logits, label, reduction="none") for logits in output)
    return last + 0.3 * sum(sides, torch.zeros_like(last))


def _convolution(before: int, after: int, kernel: int, batch_norm: bool, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=not batch_norm)
    return [convolution, *([nn.BatchNorm2d(after)] if batch_norm else []), nn.ReLU(inplace=True)]


def _response_norm(batch_norm: bool) -> list[nn.Module]:
    return [] if batch_norm else [nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)]


def _side(size: int) -> int:
    """Return the height and width of modules 4a to 4e, for images of a size."""
    side = (size - 1) // 2 + 1  # the first convolution
    for _ in range(3):
        side = -(-(side - 3) // 2) + 1  # poolings that round up
    return side


def _auxiliary(before: int, pixels: int, classes: int, batch_norm: bool) -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(5, 3),
        *_convolution(before, 128, 1, batch_norm),
        nn.Flatten(),
        nn.Linear(128 * pixels, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, classes),
    )
