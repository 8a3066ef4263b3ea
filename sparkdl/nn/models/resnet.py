"""Residual networks, for small images and for photographs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.nn.models.arguments import check_choice, check_sizes


class ResNet20(nn.Module):
    """ResNet-20 for images of 32 x 32 pixels, 0.27 million parameters.

    He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2: a convolution, three
    stages of blocks with 16, 32 and 64 channels, global average pooling and a linear layer. Where the
    size changes, the shortcut takes every other pixel and fills up with channels of zeros (option A).

    Args:
        classes: number of classes.
        blocks: blocks per stage, for 6 * blocks + 2 layers: 3 for ResNet-20, 5 for 32, 9 for 56.
        channels: channels of the image.

    Shapes:
        input: (rows, channels, 32, 32), or flat (rows, channels * 32 * 32); float, about zero mean.
        output: (rows, classes), logits.

    Raises:
        ConfigError: if a size is not positive.
    """

    def __init__(self, classes: int = 10, blocks: int = 3, channels: int = 3) -> None:
        super().__init__()
        check_sizes("ResNet20", classes=classes, blocks=blocks, channels=channels)
        self.channels = channels
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        layers: list[nn.Module] = []
        before = 16
        for width in (16, 32, 64):
            for _ in range(blocks):
                layers.append(_ResidualBlock(before, width))
                before = width
        self.stages = nn.Sequential(*layers)
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of each class."""
        x = image.reshape(-1, self.channels, 32, 32)
        x = torch.relu(self.norm(self.conv(x)))
        x = self.stages(x).mean((2, 3))
        logits: Tensor = self.head(x)
        return logits


class _ResidualBlock(nn.Module):
    """Two convolutions around a shortcut; halves the image where the channels double."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride = 1 if before == after else 2
        self.added = after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(x + y)


class ResNet(nn.Module):
    """ResNet with 18, 34, 50, 101 or 152 layers, for images of any size from 32 pixels on.

    He et al., "Deep Residual Learning for Image Recognition", 2015, table 1: 11.7, 21.8, 25.6, 44.5 and
    60.2 million parameters with 1,000 classes. Shortcuts where the size changes are 1x1 convolutions (option
    B). In bottlenecks the 3x3 convolution has the stride, not the first 1x1: half a percent better, and what
    most published weights are for. Parameters have the names of torchvision's, whose weights it loads.

    Args:
        layers: 18 or 34 for blocks of two 3x3 convolutions; 50, 101 or 152 for bottlenecks.
        classes: number of classes.
        channels: channels of the images.
        width: channels of the first stage; the others have 2, 4 and 8 times as many.
        small: whether images are small, as of 32 x 32 pixels: then the first convolution is 3x3 without
            stride, and there is no pooling after it.

    Shapes:
        input: (rows, channels, height, width), float, about zero mean.
        output: (rows, classes), logits.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        layers: int = 50,
        classes: int = 1000,
        channels: int = 3,
        width: int = 64,
        small: bool = False,
    ) -> None:
        super().__init__()
        check_choice("ResNet", "layers", layers, tuple(_BLOCKS))
        check_sizes("ResNet", classes=classes, channels=channels, width=width)
        self.layers, self.classes, self.channels = layers, classes, channels
        self.width, self.small = width, small
        block = _BasicBlock if layers < 50 else _Bottleneck
        if small:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        before = width
        for stage, count in enumerate(_BLOCKS[layers]):
            inner = width << stage
            blocks: list[nn.Module] = []
            for index in range(count):
                blocks.append(block(before, inner, stride=2 if stage and not index else 1))
                before = block.expansion * inner
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, image: Tensor) -> Tensor:
        """Return the input of the last layer: (rows, 8 * width), or 32 * width with bottlenecks."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        for stage in range(len(_BLOCKS[self.layers])):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        features: Tensor = x.mean((2, 3))
        return features

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of each class."""
        logits: Tensor = self.fc(self.features(image))
        return logits


_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage by the number of layers."""


class _Residual(nn.Module):
    """Base class of the blocks, with the shortcut."""

    expansion: int

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def residual(self, x: Tensor) -> Tensor:
        """Return the output of the block's convolutions, to which the shortcut is added."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.residual(x) + self.downsample(x))
        return y


class _BasicBlock(_Residual):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__(before, inner, stride)
        self.conv1 = nn.Conv2d(before, inner, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)

    def residual(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return y


class _Bottleneck(_Residual):
    """A 3x3 convolution between two of 1x1 that narrow and widen."""

    expansion = 4

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__(before, 4 * inner, stride)
        self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner)

    def residual(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        z: Tensor = self.bn3(self.conv3(y))
        return z
