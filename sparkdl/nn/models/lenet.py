"""LeNet-5 for small grey images."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet5(nn.Module):
    """LeNet-5 in the shape BigDL made known: conv 6, conv 12, 100, classes, with tanh.

    After LeCun et al., "Gradient-based learning applied to document recognition", 1998.

    Args:
        classes: number of classes.

    Shapes:
        input: (rows, 1, 28, 28), (rows, 28, 28) or (rows, 784), float, about zero mean.
        output: (rows, classes), logits.

    Examples:
        >>> import torch
        >>> LeNet5()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 12, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.tanh = nn.Tanh()
        self.fc1 = nn.Linear(12 * 4 * 4, 100)
        self.fc2 = nn.Linear(100, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of each class."""
        x = image.reshape(-1, 1, 28, 28)
        x = self.pool(self.tanh(self.conv1(x)))
        x = self.pool(self.tanh(self.conv2(x)))
        x = self.tanh(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits
