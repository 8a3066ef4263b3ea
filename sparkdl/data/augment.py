"""Random flips and crops of image batches, and their normalisation.

Each is a module from a batch to a batch. Join them by ``nn.Sequential``, and use the result as the
``transform`` of a :class:`~sparkdl.data.dataset.Dataset`::

    Dataset.from_dataframe(df, features="image", label="label", transform=nn.Sequential(
        RandomCrop(padding=4), RandomFlip(), Normalize(mean, std)))

Each row of a batch has its own random numbers, from torch's global generator. Each task seeds the generator,
so a training run is repeatable. As with dropout, ``eval()`` turns randomness off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, DataError


class RandomFlip(nn.Module):
    """Mirrors images from left to right, each with a probability.

    Args:
        p: the probability.

    Raises:
        ConfigError: if ``p`` is none.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ConfigError(f"p={p!r}: expected a probability")
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (rows, channels, height, width) to the same shape."""
        _check(images)
        if not self.training:
            return images
        flipped = torch.rand(len(images)) < self.p
        return torch.where(flipped[:, None, None, None].to(images.device), images.flip(3), images)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p}"


class RandomCrop(nn.Module):
    """Cuts a window out of each image at a random place, after adding a black border.

    In ``eval()`` the window is the centre, as torchvision's ``CenterCrop`` cuts it out.

    Args:
        size: height and width of the window in pixels, or one number for both; by default the images' own,
            which takes a ``padding``.
        padding: width of the border in pixels.

    Raises:
        ConfigError: if a number is out of range, or neither is given.
    """

    def __init__(self, size: int | tuple[int, int] | None = None, padding: int = 0) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else size
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ConfigError(f"size={size!r}: expected height and width in pixels")
        if padding < 0:
            raise ConfigError(f"padding={padding!r}: expected a number of pixels")
        if self.size is None and not padding:
            raise ConfigError("RandomCrop() changes nothing: give size, padding, or both")
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (rows, channels, height, width) to windows.

        Raises:
            DataError: if the window is larger than image and border.
        """
        _check(images)
        rows, _, height, width = images.shape
        across, down = (width, height) if self.size is None else (self.size[1], self.size[0])
        free_across, free_down = width + 2 * self.padding - across, height + 2 * self.padding - down
        if free_across < 0 or free_down < 0:
            raise DataError(
                f"RandomCrop(size={(down, across)}, padding={self.padding}): images of {height} x {width} "
                "are too small",
                code="data-shape",
            )
        padded = nn.functional.pad(images, [self.padding] * 4)
        if not self.training:
            top, left = round(free_down / 2), round(free_across / 2)  # as torchvision's CenterCrop
            return padded[:, :, top : top + down, left : left + across]
        tops = torch.randint(free_down + 1, (rows,))
        lefts = torch.randint(free_across + 1, (rows,))
        ys = (tops[:, None] + torch.arange(down)).to(images.device)
        xs = (lefts[:, None] + torch.arange(across)).to(images.device)
        row = torch.arange(rows, device=images.device)[:, None, None]
        # Indices around the slice put the channels last.
        return padded[row, :, ys[:, :, None], xs[:, None, :]].permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"size={self.size}, padding={self.padding}"


class Normalize(nn.Module):
    """Turns images into floats of about zero mean and unit variance.

    Bytes are divided by 255 first, so that ``mean`` and ``std`` are in units of black 0 and white 1.

    Args:
        mean: subtracted from each channel.
        std: divides each channel.

    Raises:
        ConfigError: if there is not one positive ``std`` for each ``mean``.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(std) or min(std) <= 0:
            raise ConfigError(f"mean={mean!r}, std={std!r}: expected as many positive std as mean")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (rows, channels, height, width), bytes or floats, to floats.

        Raises:
            DataError: if they have another number of channels, or are other integers.
        """
        _check(images)
        if images.shape[1] != len(self.mean):
            raise DataError(
                f"Normalize has {len(self.mean)} means, the images have {images.shape[1]} channels",
                code="data-shape",
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise DataError(
                f"Normalize: the images are {images.dtype}, of which nobody can say which value is white; "
                "expected bytes, as of Column(..., dtype='uint8'), or floats",
                code="data-type",
            )
        values = images.float() / 255 if images.dtype == torch.uint8 else images
        return (values - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def _check(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4:
        found = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise DataError(
            f"expected images of shape (rows, channels, height, width), got {found}", code="data-shape"
        )
