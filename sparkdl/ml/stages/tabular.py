"""Columns of a table to categories and numbers, as a stage of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Estimator, Model
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCols
from pyspark.sql import DataFrame

from sparkdl.data.schema import check_dataframe, check_no_stream, same_names
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.params import converters
from sparkdl.ml.params.columns import HasInputs, value_of
from sparkdl.ml.params.entries import HasEntries, ParamEntry, accessors, setter
from sparkdl.ml.persistence.stored import StoredStage
from sparkdl.ml.stages.rowwise import Settable, defined
from sparkdl.ml.stages.tabular_fit import fit_encoding
from sparkdl.ml.stages.tabular_frame import encoded
from sparkdl.table.encoding import CATEGORIES, NUMBERS, TableEncoding

_KEY = "encoding"


class _TabularParams(HasEntries, HasInputCols):
    """What goes in and what comes out."""

    inputCols = ParamEntry("inputCols", "columns of the table.", converters.names("inputCols"))
    categoriesCol = ParamEntry(
        "categoriesCol",
        "column for the numbers of categories, array<int>; an empty name leaves it out.",
        TypeConverters.toString,
        CATEGORIES,
    )
    numbersCol = ParamEntry(
        "numbersCol",
        "column for standardised numbers, array<float>; an empty name leaves it out.",
        TypeConverters.toString,
        NUMBERS,
    )

    getCategoriesCol, setCategoriesCol = accessors(categoriesCol)
    getNumbersCol, setNumbersCol = accessors(numbersCol)

    setInputCols = setter(inputCols)


class TabularEncoder(Estimator["TabularEncoderModel"], _TabularParams, Settable, StoredStage):
    """Learns what becomes of a table's columns; its model turns rows into categories and numbers.

    By type and values, a column becomes

    - a number of mean 0 and deviation 1 (numbers, dates, timestamps; booleans too). Null and NaN become 0,
      and a second number says whether a row was null, if the fit has seen null;
    - a category (strings; weekday and month of a date, and the hour of a timestamp in UTC): 0 for rare
      and unseen values, 1 for null, and the values from 2 on by falling count, equal counts in the order of
      the alphabet;
    - nothing, if it tells no rows apart: all rows are null or have one value, or no string is in enough rows.

    The output columns are arrays, whose width and dtype are in the columns' metadata, where
    :class:`sparkdl.Dataset` finds them. The fit is at most four aggregations of Spark SQL for each 1,000
    columns. The estimators do all this by themselves for ``featuresCols`` (see ``encode``); the stage is for
    modules of your own and other uses.

    ::

        encoder = TabularEncoder(inputCols=["age", "job", "city"]).fit(df)
        print(encoder.describe())
        module = DeepFM(encoder.cardinalities, encoder.width)

    Args:
        inputCols: columns of the table.
        categoriesCol: column for categories, ``array<int>``; not added if there are none.
        numbersCol: column for numbers, ``array<float>``; likewise.
        maxCategories: most values of a string column that are told apart.
        minFrequency: least rows that a string must be in for that; by default one in 1,000, from 1 to 10.
    """

    maxCategories = ParamEntry.of(HasInputs.maxCategories, 10_000)
    minFrequency = ParamEntry.of(HasInputs.minFrequency)

    getMaxCategories, setMaxCategories = accessors(maxCategories)
    getMinFrequency, setMinFrequency = accessors(minFrequency)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        inputCols: list[str] | None = None,
        categoriesCol: str = CATEGORIES,
        numbersCol: str = NUMBERS,
        maxCategories: int = 10_000,
        minFrequency: int | None = None,
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)

    def _fit(self, dataset: DataFrame) -> TabularEncoderModel:
        check_dataframe(dataset, "TabularEncoder.fit")
        check_no_stream(dataset, "TabularEncoder.fit")
        defined(self, "inputCols")
        encoding = fit_encoding(
            dataset,
            self.getInputCols(),
            max_categories=self.getMaxCategories(),
            min_frequency=value_of(self, self.minFrequency),
        )
        model = TabularEncoderModel(encoding)
        model._resetUid(self.uid)
        return self._copyValues(model)


class TabularEncoderModel(Model, _TabularParams, Settable, StoredStage):
    """Turns rows of a table into categories and numbers; what :class:`TabularEncoder` fits.

    Args:
        encoding: what becomes of each column.

    Attributes:
        encoding: likewise.
    """

    encoding: TableEncoding

    def __init__(self, encoding: TableEncoding | None = None) -> None:
        super().__init__()
        self.encoding = TableEncoding((), (), {}, 0) if encoding is None else encoding

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of values of each category, rare ones and null included, as modules take it."""
        return self.encoding.cardinalities

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self.encoding.width

    @property
    def knots(self) -> tuple[tuple[float, ...], ...]:
        """Values of each number at which :class:`sparkdl.nn.Tabular` may bend."""
        return self.encoding.knots

    def describe(self) -> str:
        """Return what becomes of each column, one a line."""
        return self.encoding.describe()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_dataframe(dataset, "TabularEncoderModel.transform")
        outputs = {CATEGORIES: self.getCategoriesCol(), NUMBERS: self.getNumbersCol()}
        chosen = {name: outputs[name] for name in self.encoding.outputs if outputs[name]}
        if len(set(chosen.values())) < len(chosen):
            raise ConfigError(
                f"categoriesCol and numbersCol are both {self.getNumbersCol()!r}: name them apart"
            )
        for name, column in chosen.items():
            if same_names(dataset, column):
                raise DataError(
                    f"{name}Col {column!r} is in the DataFrame already; choose another name or drop it",
                    code="data-column",
                )
        return encoded(dataset, self.encoding, chosen)

    def _stored(self) -> dict[str, Any]:
        return {_KEY: self.encoding.to_json()}

    def _restore(self, metadata: Mapping[str, Any], path: str) -> None:
        try:
            self.encoding = TableEncoding.from_json(metadata.get(_KEY))
        except ConfigError as error:
            raise ConfigError(f"path={path!r}: {error}", code="config-saved") from error
