"""Autoencoders: a code from which the input can be read again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.parts import perceptron


class Autoencoder(nn.Module):
    """Fully connected layers down to a code and up again.

    Hinton, Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks", Science 2006: the
    default is their network for MNIST, 784-1000-500-250-30, with 2.8 million parameters once it is unrolled;
    codes are linear, hidden values logistic there and rectified here, which needs no pre-training.

    Args:
        inputs: number of values of a row.
        hidden: sizes of the layers before the code, and in reverse after it.
        code: number of values of the code.

    Shapes:
        input: (rows, ...) with ``inputs`` values per row, float.
        output: as the input. Without a label, the Trainer's loss compares the two.

    Raises:
        ConfigError: if a size is not positive.
    """

    def __init__(self, inputs: int = 784, hidden: Sequence[int] = (1000, 500, 250), code: int = 30) -> None:
        super().__init__()
        check_sizes("Autoencoder", inputs=inputs, hidden=hidden, code=code)
        self.inputs, self.hidden, self.code = inputs, tuple(hidden), code
        sizes = [inputs, *hidden, code]
        self.encoder = nn.Sequential(nn.Flatten(), *list(perceptron(sizes))[:-1])
        self.decoder = nn.Sequential(*list(perceptron(sizes[::-1]))[:-1])

    def encode(self, x: Tensor) -> Tensor:
        """Return the codes of rows, (rows, code)."""
        codes: Tensor = self.encoder(x)
        return codes

    def forward(self, x: Tensor) -> Tensor:
        """Return rows as their codes tell them."""
        y: Tensor = self.decoder(self.encode(x))
        return y.reshape(x.shape)


class ConvAutoencoder(nn.Module):
    """Convolutions that halve an image, a code, and transposed convolutions that double it.

    After Masci et al., "Stacked Convolutional Auto-Encoders for Hierarchical Feature Extraction", ICANN
    2011, with strides in the place of pooling.

    Args:
        size: height and width of the images; 2 to the number of ``widths`` divides it.
        channels: channels of the images.
        widths: channels after each convolution.
        code: number of values of the code.

    Shapes:
        input: (rows, channels, size, size), float from 0 to 1.
        output: as the input, logits: ``sigmoid`` of them are the images.

    Raises:
        ConfigError: if a size cannot work.
    """

    def __init__(
        self, size: int = 28, channels: int = 1, widths: Sequence[int] = (16, 32), code: int = 32
    ) -> None:
        super().__init__()
        check_sizes("ConvAutoencoder", size=size, channels=channels, widths=widths, code=code)
        factor = 1 << len(widths)
        if not widths or size % factor:
            raise ConfigError(
                f"ConvAutoencoder: size={size}, widths={tuple(widths)}: expected at least one width, and a "
                f"size that {factor} divides, for each convolution halves it"
            )
        self.size, self.channels, self.widths, self.code = size, channels, tuple(widths), code
        small = (widths[-1], size // factor, size // factor)
        flat = small[0] * small[1] * small[2]
        down: list[nn.Module] = []
        for before, after in pairwise((channels, *widths)):
            down += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(flat, code))
        up: list[nn.Module] = [nn.Linear(code, flat), nn.Unflatten(1, small)]
        for before, after in pairwise((*widths[::-1], channels)):
            up += [nn.ReLU(), nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
        self.decoder = nn.Sequential(*up)

    def encode(self, image: Tensor) -> Tensor:
        """Return the codes of images, (rows, code)."""
        codes: Tensor = self.encoder(image)
        return codes

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the images as their codes tell them."""
        logits: Tensor = self.decoder(self.encode(image))
        return logits
