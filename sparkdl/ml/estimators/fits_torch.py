"""The common part of estimators of a table: its rows become Datasets, and its columns a signature."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from sparkdl.data.columns import Column, Columns, as_column, quoted
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import share_of
from sparkdl.data.scan.storage import is_url
from sparkdl.data.store.dataframe import split_by_fraction
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.ml.estimators import continued, fitting, sparsity, tables
from sparkdl.ml.estimators.continued import Earlier
from sparkdl.ml.estimators.fits_module import FitPlan, FitRows, FitsModule, building
from sparkdl.ml.params.attributes import Factory
from sparkdl.ml.params.columns import HasInputs, value_of
from sparkdl.ml.params.training import HasTrainingSetters
from sparkdl.nn.batch import group
from sparkdl.nn.signature import Signature, check_inputs_order
from sparkdl.saved.source import ModuleSource
from sparkdl.table.encoding import TableEncoding
from sparkdl.train.leaving import ErrorsCarryResult
from sparkdl.train.trainer import Trainer


def _selected(df: DataFrame, names: list[str]) -> DataFrame:
    return df.select(*map(quoted, names))


def _check_rows(path: str, found: int, df: DataFrame) -> None:
    """Check that Spark reads as many rows as there are in the files."""
    expected = df.count()
    if found != expected:
        raise DataError(
            f"parquetPath={path!r}: its files have {found:,} rows, and the DataFrame has {expected:,}. Spark "
            "passes over files in folders whose names are no column=value, and over such that came after "
            "spark.read.parquet: move these files, or read anew, or leave parquetPath out",
            code="data-source",
        )


class FitsTorch(FitsModule, HasTrainingSetters, HasInputs):
    """What the estimators of a table's rows share."""

    @abstractmethod
    def _label_to_look_at(self) -> Columns | None:
        """Return the label columns as they are to be read from the first rows."""

    def _fit_model(self, dataset: DataFrame, kept: ErrorsCarryResult) -> Any:
        settled = sparsity.settled(self, dataset)
        if settled is not self:
            return settled._fit_model(dataset, kept)
        return super()._fit_model(dataset, kept)

    def _look_at(self, dataset: DataFrame) -> FitRows:
        self._check()
        before = continued.earlier(self)
        indexed, labels = self._index_labels(dataset, before.labels if before else ())
        rows = self._rows(indexed, before)
        if labels:
            continued.check_told(self, before, "which label is which")
        if before is not None and bool(labels) != bool(before.labels):
            raise continued.other_labels(str(self._label_to_look_at()), before)
        rows.labels, rows.before = labels, before
        return rows

    @contextmanager
    def _datasets(self, rows: FitRows, label: Columns | None) -> Iterator[tuple[Dataset, Dataset | None]]:
        columns: dict[str, Any] = {
            "features": rows.features,
            "label": label,
            "weight": value_of(self, self.weightCol) or None,
            "num_partitions": value_of(self, self.numPartitions),
        }
        with ExitStack() as stack:
            if path := value_of(self, self.parquetPath):
                read = partial(Dataset.from_parquet, path, **columns, spark=rows.all.sparkSession)
                data, validation = self._scans(read, stack)
                _check_rows(path, len(data) + (0 if validation is None else len(validation)), rows.all)
                yield data, validation
                return

            def dataset_of(df: DataFrame) -> Dataset:
                data = Dataset.from_dataframe(df, **columns)
                if rows.encoding is not None:
                    data.feature_columns = rows.encoding.columns
                return stack.enter_context(data)

            train = dataset_of(rows.train)
            fitting.share_first_rows(rows.first, train)
            yield train, None if rows.validation is None else dataset_of(rows.validation)

    def _scans(self, read: Callable[..., Dataset], stack: ExitStack) -> tuple[Dataset, Dataset | None]:
        """Return Datasets of rows that stay in their files, which a stack releases."""
        if indicator := value_of(self, self.validationIndicatorCol):
            chosen = pc.field(indicator)
            return stack.enter_context(read(filter=~chosen)), stack.enter_context(read(filter=chosen))
        data = stack.enter_context(read())
        if not (fraction := self.getValidationFraction()):
            return data, None
        parts = share_of(fraction, self.getSeed())
        train, validation = map(stack.enter_context, map(data.part, parts))
        return train, validation

    def _trainer(self, rows: FitRows, plan: FitPlan, **more: Any) -> Trainer:
        if rows.encoding is not None:
            more |= tables.training(self, rows.encoding, plan.module, rows.before, rows.share)
        return super()._trainer(rows, plan, **more)

    def _check_validates(self) -> None:
        if not self.getValidationFraction() and not value_of(self, self.validationIndicatorCol):
            raise ConfigError(
                "earlyStoppingPatience needs validation rows: set validationFraction or "
                "validationIndicatorCol"
            )

    def _index_labels(self, df: DataFrame, known: tuple[str, ...]) -> tuple[DataFrame, tuple[str, ...]]:
        """Number labels that are strings, as earlier rows did; return the rows, and the strings."""
        return df, ()

    def _rows(self, df: DataFrame, before: Earlier | None) -> FitRows:
        table = tables.encodes(self, df)
        features: Columns = fitting.NOTHING if table else self.inputColumns()
        label = self._label_to_look_at()
        labels = [] if label is None else [label] if isinstance(label, str | Column) else list(label)
        names = [] if table else self.featuresNames()  # null is a value in a table
        names += [as_column(c).name for c in labels]
        weight, indicator = value_of(self, self.weightCol), value_of(self, self.validationIndicatorCol)
        names += [weight] if weight else []
        if path := value_of(self, self.parquetPath):
            self._check_lies(df, path, table, names + ([indicator] if indicator else []))
        seen = df.withColumn(fitting.NOTHING, F.lit(0.0)) if table else df
        columns: dict[str, Any] = {"label": label, "weight": weight or None}
        first = Dataset.from_dataframe(seen, features=features, **columns)  # checks names
        if self.getHandleInvalid() != "error":
            df = fitting.with_values(df, names)
        read = [*self.featuresNames(), *names] if table else names
        needed = list(dict.fromkeys([*read, *([indicator] if indicator else [])]))
        validation: DataFrame | None = None
        if indicator:
            train, validation = fitting.split_by_indicator(df, indicator, needed)
            if self.getHandleInvalid() == "error":
                fitting.check_sides(df, indicator)
            else:
                df = fitting.with_values(df, [indicator])
        elif (fraction := self.getValidationFraction()) and not path:
            df = df.select(*map(quoted, needed))
            train, validation = split_by_fraction(df, fraction, self.getSeed())
        else:
            train = df
        encoding: TableEncoding | None = None
        if table:
            encoding = tables.fitted(self, train, before, names)  # before passes that take long
            features = tables.inputs_of(encoding, self.module)
            kept = list(dict.fromkeys(names))
            df, train = (tables.arrays(part, encoding, kept) for part in (df, train))
            validation = None if validation is None else tables.arrays(validation, encoding, kept)
        if df is not train or self.getHandleInvalid() != "error" or table:
            first = Dataset.from_dataframe(train, features=features, **columns)
        rows = FitRows(
            all=df, train=train, validation=validation, features=features, first=first, encoding=encoding
        )
        keys = first.plan.features.keys
        rows.tensors = fitting.rows_of(first, keys)
        if not table:
            rows.inputs = {
                plan.source: tuple(tensor.shape[1:])
                for plan, tensor in zip(first.plan.columns, rows.tensors, strict=False)
            }
        return rows

    def _check_lies(self, df: DataFrame, path: str, table: bool, names: list[str]) -> None:
        """Check that rows are those of Parquet files, as they are."""
        if table:
            raise ConfigError(
                "parquetPath: columns of a table are encoded, which copies the rows; give a module and "
                "encode='off', or leave parquetPath out"
            )
        if self.getHandleInvalid() != "error":
            raise ConfigError(
                f"parquetPath: handleInvalid={self.getHandleInvalid()!r} leaves rows out, which files have; "
                "use 'error', or leave parquetPath out"
            )
        lies = df.sparkSession.read.parquet(path)
        if not is_url(path) and not all(file.startswith("file:") for file in lies.inputFiles()[:1]):
            raise ConfigError(
                f"parquetPath={path!r}: Spark finds it on another file system than the executors' own; give "
                "the whole URL, such as hdfs://namenode/..., here and to spark.read.parquet"
            )
        wanted = [name for name in names if name in df.columns]  # of others the Dataset tells
        there = all(name in lies.columns for name in wanted)
        if not there or not _selected(df, wanted).sameSemantics(_selected(lies, wanted)):
            raise ConfigError(
                f"parquetPath={path!r}: the columns {', '.join(wanted)} of this DataFrame are not, or need "
                f"not be, those of the files; expected spark.read.parquet({path!r}), with select at most. "
                "Filters, other paths or options, tables and pipeline stages make others: leave parquetPath "
                "out then"
            )

    def _build(
        self, default: Factory | None = None, **arguments: Any
    ) -> tuple[nn.Module, ModuleSource | None]:
        if self.module is None and default is not None and self._arguments():
            raise ConfigError(
                f"inputNames={self._arguments()}: the default module takes inputs by position; leave the "
                "names out"
            )
        return super()._build(default, **arguments)

    def _build_for(self, rows: FitRows, **arguments: Any) -> tuple[nn.Module, ModuleSource | None]:
        """Make the module that was given; a factory is told of a table what it asks for."""
        if rows.encoding is None:
            return self._build()
        return self._build(**tables.layout(rows.encoding, self.module, **arguments))

    def _signature(self, module: nn.Module, rows: FitRows) -> Signature:
        if rows.encoding is None and not self._arguments():
            check_inputs_order(module, self.featuresNames())
        with building:  # the module's mode changes for a moment, and other fits may share it
            try:
                plans = rows.first.plan.columns[: len(rows.tensors)]
                found = Signature.of_rows(module, group(rows.tensors, rows.names))
                return found.of_any_length([plan.ragged for plan in plans])
            except ModelError as error:
                if error.input is None:
                    raise
                name = rows.first.plan.columns[error.input].source
                raise ModelError(f"features column {name!r}: {error}") from error.__cause__

    def _one_output(self, signature: Signature) -> tuple[int, ...]:
        """Return the shape of the only output of a module."""
        shapes = [spec.shape for spec in signature.outputs if spec.shape is not None]
        if len(shapes) != 1:
            raise ConfigError(
                f"module: it returns {len(signature.outputs)} tensors; {type(self).__name__} trains modules "
                "that return one. TorchEstimator trains others"
            )
        return shapes[0]
