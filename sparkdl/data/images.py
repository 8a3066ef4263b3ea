"""From encoded images and Spark's image rows to arrays of one shape.

Everything here is plain Python: the same :class:`ImageFormat` prepares images in the tasks of a Spark job
and, without Spark, for a model that is served.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import numpy as np

from sparkdl.exceptions import ConfigError, DataError, is_integer
from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from PIL import Image

Mode = Literal["resize", "crop"]
Layout = Literal["CHW", "HWC"]

# Raster formats alone: Pillow would also run Ghostscript on whatever calls itself PostScript.
_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_RAW = {1: ("L", "L"), 3: ("RGB", "BGR"), 4: ("RGBA", "BGRA")}
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a tag of TIFF, and one of its values
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """The tensor that every image becomes; raises ConfigError for a value that cannot work.

    An image is turned upright as its EXIF data ask, loses its transparency, is brought to ``size`` with
    antialiased bilinear interpolation, and normalised.
    """

    size: int | tuple[int, int]  # height and width of the tensor in pixels, or one number for both
    # ``"resize"`` stretches the image to ``size``; ``"crop"`` keeps its proportions and cuts ``size`` out of
    # the centre
    mode: Mode = "resize"
    # with ``"crop"``, the pixels that the image's shorter side is scaled to before the cut, such as 256 for a
    # ``size`` of 224; by default as few as ``size`` needs
    shorter_side: int | None = None
    channels: int = 3  # 3 for red, green and blue, 1 for grey
    # subtracted from each channel, with the darkest value 0 and the brightest 1
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None  # then divides each channel
    # ``"float32"`` for values from 0 to 1, before ``mean`` and ``std``; ``"uint8"`` for 0 to 255
    dtype: Literal["float32", "uint8"] = "float32"
    layout: Layout = "CHW"  # ``"CHW"`` (channels first, as torch wants it) or ``"HWC"``

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        if len(size) != 2 or not all(is_integer(n, 1) for n in size):
            raise ConfigError(f"size={self.size!r}: expected height and width in pixels, such as (224, 224)")
        object.__setattr__(self, "size", size)
        _one_of("mode", self.mode, ("resize", "crop"))
        _one_of("channels", self.channels, (1, 3))
        _one_of("dtype", self.dtype, ("float32", "uint8"))
        _one_of("layout", self.layout, ("CHW", "HWC"))
        if self.shorter_side is not None:
            if self.mode != "crop":
                raise ConfigError(f"shorter_side={self.shorter_side} has a meaning with mode='crop' only")
            if self.shorter_side < max(size):
                raise ConfigError(
                    f"shorter_side={self.shorter_side}: expected at least {max(size)}, so that {size} fits in"
                )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if self.dtype == "uint8":
                raise ConfigError(
                    f"{name} needs dtype='float32'; to store bytes, normalise each batch with "
                    "sparkdl.data.augment.Normalize as the Dataset's transform"
                )
            if len(values) != self.channels or not np.isfinite(values).all():
                raise ConfigError(
                    f"{name}={values!r}: expected {self.channels} finite numbers, one a channel"
                )
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if self.std is not None and min(self.std) <= 0:
            raise ConfigError(f"std={self.std!r}: expected positive numbers")

    @property
    def height_width(self) -> tuple[int, int]:
        """Height and width in pixels."""
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the tensor."""
        height, width = self.height_width
        return (self.channels, height, width) if self.layout == "CHW" else (height, width, self.channels)

    def decode(self, data: bytes | bytearray | memoryview) -> Array:
        """Turn an encoded image (PNG, JPEG, ...) into the tensor; raises DataError if it is not all there."""
        require_pillow()
        try:
            return self._tensor(_open(data))
        except DataError:
            raise
        except Exception as error:  # a decoder meets any error in bytes that anyone may have written
            raise DataError(
                f"{len(data)} bytes that are no readable image ({error})", code="data-value"
            ) from error

    def from_spark(
        self, height: int, width: int, channels: int, mode: int, data: bytes | bytearray | memoryview
    ) -> Array:
        """Turn the fields of a row of Spark's ``image`` source into the tensor; raises DataError.

        ``height`` is -1 where Spark could not decode. ``channels`` are 1 (grey), 3 (blue, green, red) or 4
        (with transparency), ``mode`` is OpenCV's type.
        """
        require_pillow()
        from PIL import Image

        if height < 1 or width < 1:
            raise DataError("Spark could not decode the image", code="data-value")
        if channels not in _RAW or mode & 7:
            raise DataError(
                f"image of OpenCV type {mode} with {channels} channels; expected 1, 3 or 4 of 8 bits",
                code="data-type",
            )
        if len(data) != height * width * channels:
            raise DataError(
                f"{len(data)} bytes of pixels for {height} x {width} x {channels}", code="data-value"
            )
        pixels, raw = _RAW[channels]
        return self._tensor(Image.frombytes(pixels, (width, height), bytes(data), "raw", raw))

    def _tensor(self, image: Image.Image) -> Array:
        from PIL import Image

        height, width = self.height_width
        image = _plain(image, self.channels)
        box = self._window(image.size) if self.mode == "crop" else None
        if box is not None or image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR, box)
        values = np.asarray(image).reshape(height, width, self.channels)
        if self.dtype == "float32":
            values = values.astype(np.float32) / np.float32(255)
            if self.mean is not None:
                values -= np.asarray(self.mean, np.float32)
            if self.std is not None:
                values /= np.asarray(self.std, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1) if self.layout == "CHW" else values)

    def _window(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return the part of the image that is kept: left, top, right, bottom, in its own pixels."""
        width, height = size
        rows, columns = self.height_width
        scale = self.shorter_side / min(size) if self.shorter_side else max(rows / height, columns / width)
        across, down = min(columns / scale, width), min(rows / scale, height)
        left, top = (width - across) / 2, (height - down) / 2
        return left, top, min(left + across, width), min(top + down, height)


def require_pillow() -> None:
    """Check that images can be decoded."""
    if find_spec("PIL") is None:
        raise ImportError("images are decoded with Pillow: pip install 'sparkdl[images]'")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: expected {' or '.join(map(repr, allowed))}")


def _open(data: bytes | bytearray | memoryview) -> Image.Image:
    from PIL import Image, ImageOps

    Image.init()
    known = [name for name in _FORMATS if name in Image.OPEN]
    image = Image.open(io.BytesIO(data), formats=known)
    if image.format == "TIFF" and image.mode == "I":  # those of other formats go up to 65535
        raise DataError(
            "pixels are integers of 32 bits or with a sign, of which nobody can say which one is white",
            code="data-type",
        )
    upright = ImageOps.exif_transpose(image)
    return _as_white(upright, image) if image.format == "TIFF" and image.mode in _WIDE else upright


def _as_white(image: Image.Image, of: Image.Image) -> Image.Image:
    """Return an image of a TIFF with 65535 for white: Pillow leaves 12 bits, and 0 for white, as they are."""
    from PIL import Image, TiffImagePlugin

    assert isinstance(of, TiffImagePlugin.TiffImageFile)
    (bits, *_), white = of.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,)), of.tag_v2.get(_PHOTOMETRIC)
    values = np.asarray(image).astype(np.uint16) << np.uint16(16 - bits)
    return Image.fromarray(np.uint16(65535) - values if white == _WHITE_IS_ZERO else values)


def _plain(image: Image.Image, channels: int) -> Image.Image:
    """Convert to 8-bit grey or RGB without transparency."""
    from PIL import Image

    if image.mode in _WIDE:  # Pillow would cut off, not scale
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    elif image.mode == "F":
        raise DataError("pixels are floats, of which nobody can say which one is white", code="data-type")
    elif image.mode == "P":
        image = image.convert("RGBA")  # a palette may hold transparency
    return image.convert("L" if channels == 1 else "RGB")
