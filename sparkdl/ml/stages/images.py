"""Images in DataFrame columns to tensors in DataFrame columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from pyspark import keyword_only
from pyspark.ml import Transformer
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from sparkdl.data.columns import quoted, tensor_metadata
from sparkdl.data.images import ImageFormat, require_pillow
from sparkdl.exceptions import DataError
from sparkdl.ml.params.converters import one_of
from sparkdl.ml.params.entries import ParamEntry, accessors, getter, setter
from sparkdl.ml.persistence.stored import StoredStage
from sparkdl.ml.stages.rowwise import HandleInvalid, Settable, add_column, defined, find_field

_IMAGE_FIELDS = ("height", "width", "nChannels", "mode", "data")


def _to_size(value: Any) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value, value]
    return TypeConverters.toListInt(value)


class ImageToTensor(Transformer, HasInputCol, HasOutputCol, HandleInvalid, Settable, StoredStage):
    """Decodes images, brings them to one size and normalises them.

    The input column holds encoded images (column ``content`` of Spark's ``binaryFile`` source) or the structs
    of Spark's ``image`` source. The output column is binary: a tensor's values in little-endian order, with
    shape and dtype in the column's metadata, where :class:`sparkdl.Dataset` finds them by itself.

    An image that is null or cannot be decoded is invalid: ``handleInvalid`` is ``"error"``, ``"skip"`` or
    ``"keep"``. Errors name the image's path: that in the struct, or that in the column ``pathCol``.

    ``dtype="uint8"`` takes a quarter of the room; normalise the batches then with
    :class:`sparkdl.data.augment.Normalize`.

    Args:
        inputCol: column of images.
        outputCol: column of tensors.
        size: height and width, or one number for both. It has no default.
        mode: ``"resize"`` or ``"crop"``, see :class:`sparkdl.data.images.ImageFormat`.
        shorterSide: with ``"crop"``, what the shorter side is scaled to before the cut.
        channels: 3 for colour, 1 for grey.
        mean: per channel, on a scale from 0 to 1.
        std: per channel, likewise.
        dtype: ``"float32"`` or ``"uint8"``.
        layout: ``"CHW"`` or ``"HWC"``.
        pathCol: string column that names encoded images in errors; it may be missing.
        handleInvalid: ``"error"``, ``"skip"`` or ``"keep"``.
    """

    size = ParamEntry("size", "height and width of the tensors in pixels", _to_size)
    mode = ParamEntry(
        "mode",
        "'resize' stretches images to the size; 'crop' keeps proportions and cuts out the centre",
        one_of("mode", "resize", "crop"),
        "resize",
    )
    shorterSide = ParamEntry(
        "shorterSide",
        "with mode='crop', pixels that the shorter side is scaled to before the cut; by default as few as "
        "the size needs",
        TypeConverters.toInt,
    )
    channels = ParamEntry("channels", "3 for colour, 1 for grey", TypeConverters.toInt, 3)
    mean = ParamEntry(
        "mean", "subtracted from each channel, with black 0 and white 1", TypeConverters.toListFloat
    )
    std = ParamEntry("std", "then divides each channel", TypeConverters.toListFloat)
    dtype = ParamEntry(
        "dtype",
        "'float32' for values from 0 to 1, 'uint8' for values from 0 to 255",
        one_of("dtype", "float32", "uint8"),
        "float32",
    )
    layout = ParamEntry(
        "layout", "'CHW' for channels first, 'HWC' for channels last", one_of("layout", "CHW", "HWC"), "CHW"
    )
    pathCol = ParamEntry(
        "pathCol",
        "string column that names encoded images in errors; it may be missing",
        TypeConverters.toString,
        "path",
    )

    setInputCol = setter(HasInputCol.inputCol)
    setOutputCol = setter(HasOutputCol.outputCol)
    getSize = getter(size)
    getMode, setMode = accessors(mode)
    getShorterSide, setShorterSide = accessors(shorterSide)
    getChannels, setChannels = accessors(channels)
    getMean = getter(mean)
    getStd = getter(std)
    getDtype, setDtype = accessors(dtype)
    getLayout, setLayout = accessors(layout)
    getPathCol, setPathCol = accessors(pathCol)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        size: int | Sequence[int] | None = None,
        mode: str = "resize",
        shorterSide: int | None = None,
        channels: int = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: str = "float32",
        layout: str = "CHW",
        pathCol: str = "path",
        handleInvalid: str = "error",
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)

    @property
    def format(self) -> ImageFormat:
        """What the Params say, for use without Spark.

        Raises:
            ConfigError: naming a Param that is not set or has a value that cannot work.
        """
        defined(self, "size")

        chosen: dict[str, Any] = {
            "size": tuple(self.getSize()),
            "mode": self.getMode(),
            "shorter_side": self.getShorterSide() if self.isDefined(self.shorterSide) else None,
            "channels": self.getChannels(),
            "mean": tuple(self.getMean()) if self.isDefined(self.mean) else None,
            "std": tuple(self.getStd()) if self.isDefined(self.std) else None,
            "dtype": self.getDtype(),
            "layout": self.getLayout(),
        }
        return ImageFormat(**chosen)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        defined(self, "inputCol")
        require_pillow()
        wanted = self.format
        name = self.getInputCol()
        found = find_field(dataset, "inputCol", name).dataType
        column, path = quoted(name), self.getPathCol()
        row_name: Column | None = None
        if isinstance(found, T.BinaryType):
            function: Callable[..., Any] = wanted.decode
            values: list[Column] = [column]
            if path in dataset.columns:
                row_name = quoted(path).cast("string")
        elif isinstance(found, T.StructType) and set(_IMAGE_FIELDS) <= set(found.names):
            function, values = wanted.from_spark, [column[field] for field in _IMAGE_FIELDS]
            if "origin" in found.names:
                row_name = column["origin"]
        else:
            raise DataError(
                f"inputCol {name!r} has type {found.simpleString()}: expected binary (Spark's binaryFile "
                "source) or the struct of Spark's image source"
            )
        metadata = tensor_metadata(wanted.shape, wanted.dtype)
        return add_column(self, dataset, function, values, T.BinaryType(), metadata, row_name)

    def setSize(self, value: int | Sequence[int]) -> Self:
        """Set ``size``."""
        return self._set(size=value)

    def setMean(self, value: Sequence[float]) -> Self:
        """Set ``mean``."""
        return self._set(mean=value)

    def setStd(self, value: Sequence[float]) -> Self:
        """Set ``std``."""
        return self._set(std=value)
